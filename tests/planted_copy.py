"""A hand-made two-layer model that copies with two heads, and texts for it.

Head 0.0 writes the previous token of every position, head 1.2 looks for a position whose previous
token is the current one and writes that position's token. Where there is none it rests on the first
token, which says nothing. Head 1.3 says the same everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from switchsd.analysis.causal.copy_texts import CopyTexts, copy_texts
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap

VOCAB, LENGTH, WIDTH, D_HEAD = 30, 128, 512, 128
TOKEN, PLACE = slice(0, VOCAB), slice(VOCAB, VOCAB + LENGTH)
PREVIOUS = slice(PLACE.stop, PLACE.stop + VOCAB)
OUT = slice(PREVIOUS.stop, PREVIOUS.stop + VOCAB)
PREVIOUS_HEAD, COPY_HEAD, CONSTANT_HEAD = (0, 0), (1, 2), (1, 3)
CLASSES = np.ones(VOCAB, dtype=int)
CLASSES[0] = 5  # the first token of every text is special


def planted_tokenizer() -> Any:
    """Words `w1` … and one special token, `<s>`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, **{f"w{number}": number for number in range(1, VOCAB)}}
    made = Tokenizer(models.WordLevel(words, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


def planted_model(noise: float = 0.0) -> Lens:
    """The model; `noise` goes into the heads and MLPs that are not planted."""
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=LENGTH, n_inner=32,
        bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ln_" not in name:
                weight.normal_(0, noise) if noise and ".h." in name else weight.zero_()
        base = model.transformer
        base.wte.weight[:, TOKEN] = torch.eye(VOCAB)
        base.wpe.weight[:, PLACE] = torch.eye(LENGTH)
        first, second = (block.attn for block in base.h)
        for attention, head in ((first, 0), (second, 2), (second, 3)):
            for part in range(3):
                at = part * WIDTH + head * D_HEAD
                attention.c_attn.weight[:, at : at + D_HEAD] = 0.0
                attention.c_attn.bias[at : at + D_HEAD] = 0.0
            attention.c_proj.weight[head * D_HEAD : (head + 1) * D_HEAD] = 0.0
        query, key, value, out = _head(first, 0)
        for place in range(1, LENGTH):
            query[PLACE.start + place, place - 1] = 2.0
        key[PLACE, :LENGTH] = 2.0 * torch.eye(LENGTH)
        value[TOKEN, :VOCAB] = torch.eye(VOCAB)
        out[:VOCAB, PREVIOUS] = torch.eye(VOCAB) / 16
        query, key, value, out = _head(second, 2)
        query[TOKEN, :VOCAB] = 2.5 * torch.eye(VOCAB)
        key[PREVIOUS, :VOCAB] = 2.5 * torch.eye(VOCAB)
        second.c_attn.bias[2 * D_HEAD + D_HEAD - 1] = 20.0  # every query likes the first place
        key[PLACE.start, D_HEAD - 1] = 1.0
        value[TOKEN, :VOCAB] = torch.eye(VOCAB)
        value[0, 0] = 0.0
        out[:VOCAB, OUT] = torch.eye(VOCAB) / 13
        constant = 2 * WIDTH + 3 * D_HEAD
        second.c_attn.bias[constant : constant + D_HEAD] = 1.0
        _head(second, 3)[3][:, OUT] = 0.001
        model.lm_head.weight[:, OUT] = torch.eye(VOCAB)
    return wrap(model, planted_tokenizer(), name="planted")


def _head(attention: torch.nn.Module, head: int) -> tuple[torch.Tensor, ...]:
    """Views of a head's query, key, value and output weights."""
    parts = [attention.c_attn.weight[:, part * WIDTH : (part + 1) * WIDTH] for part in range(3)]
    mine = slice(head * D_HEAD, (head + 1) * D_HEAD)
    return (*(part[:, mine] for part in parts), attention.c_proj.weight[mine])


def planted_texts(n_prompts: int = 6, *, seed: int = 0) -> CopyTexts:
    """Prompts of distinct tokens, copied for 9 or for 5 tokens; then tokens follow that are new."""
    random = np.random.default_rng(seed)
    rows = []
    for prompt in range(n_prompts):
        ids = random.permutation(np.arange(1, VOCAB)).tolist()
        context, new = [0, *ids[:14]], ids[14:20]
        start = int(random.integers(2, 6))
        copied = context[start : start + (5 if prompt % 2 else 9)]
        rows.append((f"p{prompt}", f"f{prompt % 2}", context, [*new[:3], *copied, *new[3:]]))
    names = ["prompt_id", "family", "prompt_ids", "completion_ids"]
    return copy_texts(pd.DataFrame(rows, columns=names), CLASSES, breaks={0})


def planted_probe(lens: Lens, site: str = "blocks.1.hook_resid_post") -> CopyProbe:
    """Reads how much the copy head has written."""
    weight = torch.zeros(WIDTH)
    weight[OUT] = 4.0
    return CopyProbe(site, 1, 0.5, weight, -2.0, lens.name, lens.fingerprint)
