"""A Llama with one induction head, set by hand: layer 1, head 2, fed by head 0.1.

The residual stream has the token's one-hot in its first `VOCAB` dimensions and, after layer 0, the
one-hot of the token before in the next. Head 0.1 attends to the position before, by the rotation of
fast rotary pairs, and copies its token across. Head 1.2 asks for its own token among those, in slow
pairs that hardly rotate, and writes the token it finds into the first dimensions. Two query heads
share each key head, so 0.0 and 1.3 see the planted keys and values without being planted. All other
weights are small and random; the MLPs write nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap

VOCAB, WIDTH, HEAD, LAYERS, HEADS = 24, 48, 64, 2, 4
PREVIOUS, INDUCTION = (0, 1), (1, 2)
_PAIRS = HEAD // 2
_FAST = range(16)
_SLOW = [*range(16, 32), *range(48, 64)]


def planted_lens(backend: Any = "bridge") -> Lens:
    """The model as a lens."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, head_dim=HEAD, attention_bias=True,
        max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e8},
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        initializer_range=0.02,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        _embed(model)
        _plant_previous(model.model.layers[0].self_attn)
        _plant_induction(model.model.layers[1].self_attn)
    return wrap(model, name="planted", backend=backend)


def _embed(model: Any) -> None:
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.zero_()
        weight[:, :VOCAB] = torch.eye(VOCAB)
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.zero_()
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(layer.self_attn, projection).bias.zero_()


def _plant_previous(attention: Any) -> None:
    """q · k = c² Σ cos((q − k − 1) θ): greatest one position back."""
    head, shared, c = rows(1), rows(0), 15.0
    angle = 1e8 ** (-torch.arange(_PAIRS) / _PAIRS)
    query, key = torch.zeros(HEAD), torch.zeros(HEAD)
    for pair in _FAST:
        query[pair] = c
        key[pair], key[pair + _PAIRS] = c * angle[pair].cos(), c * angle[pair].sin()
    attention.q_proj.weight[head] = 0.0
    attention.q_proj.bias[head] = query
    attention.k_proj.weight[shared] = 0.0
    attention.k_proj.bias[shared] = key
    attention.v_proj.weight[shared] = _reads(0)
    attention.o_proj.weight[:, head] = _writes(VOCAB) / WIDTH**0.5


def _plant_induction(attention: Any) -> None:
    head, shared, sharp = rows(2), rows(1), 2.5
    attention.q_proj.weight[head] = _reads(0, _SLOW) * sharp
    attention.k_proj.weight[shared] = _reads(VOCAB, _SLOW) * sharp
    attention.v_proj.weight[shared] = _reads(0)
    attention.o_proj.weight[:, head] = _writes(0)


def rows(head: int) -> slice:
    """A head's rows of a projection."""
    return slice(head * HEAD, (head + 1) * HEAD)


def _reads(start: int, slots: Any = range(VOCAB)) -> torch.Tensor:
    """[d_head, d_model]: stream dimension start + j into slot j."""
    weight = torch.zeros(HEAD, WIDTH)
    for j, slot in zip(range(VOCAB), slots, strict=False):
        weight[slot, start + j] = 1.0
    return weight


def _writes(start: int) -> torch.Tensor:
    """[d_model, d_head]: slot j into stream dimension start + j."""
    weight = torch.zeros(WIDTH, HEAD)
    for j in range(VOCAB):
        weight[start + j, j] = 1.0
    return weight
