"""Planted induction heads: an untrained EAGLE-3 head finds the token and copies what followed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from switchsd.decoding.eagle3.head import Eagle3Config, Eagle3Head
from switchsd.decoding.training.eagle3_task import frequent_tokens, warm_head
from switchsd.decoding.training.induction import Sample, draw_sample, plant_induction
from switchsd.probing.lens import Lens
from tiny_training import RECIPE, features, greedy_texts
from tolerance import close
from torch import Tensor

D, VOCAB, WIDTH = 96, 60, 64


def fresh(kv_heads: int = 3, theta: float = 1e5, vocabulary: int = VOCAB) -> Eagle3Head:
    torch.manual_seed(0)
    head = Eagle3Head(
        Eagle3Config(
            hidden_size=D, target_hidden_size=D, intermediate_size=32,
            num_attention_heads=2 * kv_heads, num_key_value_heads=kv_heads, head_dim=WIDTH,
            vocab_size=VOCAB, draft_vocab_size=vocabulary, rope_theta=theta,
        )
    )  # fmt: skip
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.02)
        head.midlayer.hidden_norm.weight.uniform_(0.5, 2.0)
        head.midlayer.input_layernorm.weight.uniform_(0.5, 2.0)
    return head


def world(scale: float = 1.0) -> tuple[Tensor, Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Embedding, another unembedding, and the target's streams on a text: the low one tells the
    token, turned and noisy; the last one has nothing to do with it."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    embedding, unembedding = draw(VOCAB, D), draw(VOCAB, D)
    turn = torch.linalg.qr(draw(D, D))[0]

    def streams(tokens: Tensor) -> tuple[Tensor, Tensor]:
        low = (embedding[tokens] + 0.2 * draw(len(tokens), D)) @ turn * scale
        return low, 3 * draw(len(tokens), D)

    return embedding, unembedding, streams


def planted(head: Eagle3Head, scale: float = 1.0) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Plant, then what attention adds on a text that repeats a passage; with its tokens."""
    embedding, unembedding, streams = world(scale)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB, (3000,), generator=generator)
    chosen = plant_induction(head, Sample(tokens, *streams(tokens)), embedding, unembedding)
    passage = torch.randperm(VOCAB, generator=generator)[:30]
    text = torch.cat([passage, passage])
    low, last = streams(text)
    seen: dict[str, Tensor] = {}
    attention = head.midlayer.self_attn
    hook = attention.register_forward_hook(lambda _m, _i, out: seen.update(added=out))
    slots = len(text) - 1
    feature = head.fuse(torch.cat([low, torch.zeros_like(low), last], -1))[None, :slots]
    head(
        embedding[text[1:]][None], feature, torch.arange(slots)[None],
        torch.ones(1, slots, slots, dtype=torch.bool).tril(),
    )  # fmt: skip
    hook.remove()
    return chosen, text, seen["added"][0], unembedding


@torch.no_grad()
@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
def test_the_repeated_passage_is_copied(scale: float) -> None:
    chosen, text, added, unembedding = planted(fresh(), scale)
    assert chosen == [1, 2]
    guesses = (added @ unembedding.T).argmax(-1)  # of slot s, which holds token s + 1: s + 2
    assert (guesses[29:58] == text[31:60]).float().mean() > 0.9
    assert (guesses[:28] == text[2:30]).float().mean() < 0.2  # nothing to copy from yet


@torch.no_grad()
def test_a_smaller_draft_vocabulary_writes_for_its_own_tokens() -> None:
    head = fresh(vocabulary=40)
    head.set_vocabulary(torch.arange(10, 50))
    _, text, added, unembedding = planted(head)
    mine = (text[31:60] >= 10) & (text[31:60] < 50)
    guesses = 10 + (added[29:58] @ unembedding[10:50].T).argmax(-1)
    assert (guesses == text[31:60])[mine].float().mean() > 0.9


@pytest.mark.parametrize(("kv_heads", "theta"), [(1, 1e5), (3, 10.0)])
def test_where_it_cannot_be_planted_nothing_changes(kv_heads: int, theta: float) -> None:
    head = fresh(kv_heads, theta)
    before = deepcopy(head.state_dict())
    assert planted(head)[0] == []
    assert all(torch.equal(before[name], weight) for name, weight in head.state_dict().items())


def test_the_other_heads_stay_what_they_were() -> None:
    head = fresh()
    before = deepcopy(head.midlayer.self_attn.state_dict())
    assert planted(head)[0] == [1, 2]
    after = head.midlayer.self_attn.state_dict()
    for name, per_kv in (("q_proj", 2), ("k_proj", 1), ("v_proj", 1)):
        old, new = before[f"{name}.weight"], after[f"{name}.weight"]
        own = per_kv * WIDTH
        assert torch.equal(old[:own], new[:own])
        assert not torch.equal(old[own:], new[own:])
    assert torch.equal(
        before["o_proj.weight"][:, : 2 * WIDTH], after["o_proj.weight"][:, : 2 * WIDTH]
    )


def test_the_sample_is_the_training_texts_own(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama", num_hidden_layers=6)
    data = features(lens, greedy_texts(lens), tmp_path / "features")
    first, last = "blocks.1.hook_resid_post", "blocks.5.hook_resid_post"
    sample = draw_sample(data, [3, 5], first, last)
    texts = [[*data.texts["prompt_ids"][i], *data.texts["completion_ids"][i]] for i in (3, 5)]
    found = [lens.forward(torch.tensor([text]), sites=(first, last)).streams for text in texts]
    orders = [[0, 1], [1, 0]]
    order = next(o for o in orders if sample.tokens.tolist() == [t for i in o for t in texts[i]])
    # texts were read in batches, here one by one: in float64 both agree to 1e-15 of their size
    low, end = (torch.cat([found[i][site][0] for i in order]) for site in (first, last))
    close(sample.low, low, length=2 * lens.d_model)
    close(sample.last, end, length=6 * lens.d_model)


def test_heads_for_targets_that_cannot_hold_it_start_plainly(
    tiny: Callable[..., Lens], tmp_path: Path
) -> None:
    lens = tiny("llama", num_hidden_layers=6)  # its heads are too narrow
    data = features(lens, greedy_texts(lens), tmp_path / "features")
    recipe = replace(RECIPE, aux_layers=(2, 3, 6))
    vocabulary = frequent_tokens(data.texts, 26, lens.d_vocab)
    sample = draw_sample(data, [0, 1], "blocks.1.hook_resid_post", "blocks.5.hook_resid_post")
    torch.manual_seed(0)
    plain = warm_head(lens, recipe, vocabulary)
    torch.manual_seed(0)
    other = warm_head(lens, recipe, vocabulary, sample)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters(), strict=True)
    )
    assert plain.config.rope_theta == lens.config.rope_parameters["rope_theta"]
