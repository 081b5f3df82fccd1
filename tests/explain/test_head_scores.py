"""Head scores: every definition on a case computed by hand, and one planted induction head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from planted_induction import INDUCTION, PREVIOUS, VOCAB, planted_lens
from switchsd import SwitchSDError
from switchsd.analysis.explain.attention import (
    copy_sources,
    patterns,
    prefix_targets,
    previous_targets,
    random_repeats,
    score_text,
    source_targets,
    stripe_targets,
    target_mass,
    text_targets,
)
from switchsd.analysis.explain.copying import (
    copying,
    copying_scores,
    head_output,
    head_values,
    real,
    unembedding,
)
from switchsd.analysis.explain.head_table import head_scores, head_table
from switchsd.intervals import draw, ratio
from switchsd.probing.lens import Lens
from tolerance import close


def keys(targets: np.ndarray) -> dict[int, list[int]]:
    return {q: np.flatnonzero(row).tolist() for q, row in enumerate(targets.tolist()) if any(row)}


# ---- which keys -----------------------------------------------------------------------------


def test_prefix_matching_looks_after_every_earlier_occurrence() -> None:
    #        0  1  2  3  4  5  6
    ids = [7, 1, 2, 7, 3, 7, 1]
    assert keys(prefix_targets(ids)) == {3: [1], 5: [1, 4], 6: [2]}


def test_an_immediate_repeat_has_itself_as_key() -> None:
    assert keys(prefix_targets([5, 5, 6])) == {1: [1]}


def test_the_stripe_takes_the_latest_occurrence_only() -> None:
    assert keys(stripe_targets([7, 1, 2, 7, 3, 7, 1])) == {3: [1], 5: [4], 6: [2]}
    assert keys(stripe_targets([8, 1, 2, 3, 1, 2, 3])) == {4: [2], 5: [3], 6: [4]}


def test_previous_token() -> None:
    assert keys(previous_targets([4, 4, 4])) == {1: [0], 2: [1]}


def test_copy_source_is_where_the_context_index_would_copy_from() -> None:
    #        0  1  2  3  4  5  6  7  8
    ids = [1, 2, 3, 4, 9, 1, 2, 3, 4]
    assert copy_sources(ids, 0, n=3).tolist() == [-1] * 7 + [3, -1]  # the end's next is unknown
    assert copy_sources(ids, 0, n=2).tolist() == [-1] * 6 + [2, 3, -1]
    assert copy_sources(ids, 8, n=2).tolist() == [-1] * 9  # nothing before the start
    assert keys(source_targets(copy_sources(ids, 0, n=2))) == {6: [2], 7: [3]}


def test_right_and_wrong_copies_are_told_apart() -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2, 4]
    found = text_targets(ids, 0, n=2)
    assert keys(found["copy_source"]) == {4: [2], 7: [5]}
    assert keys(found["copy_source_right"]) == {7: [5]}
    assert keys(found["copy_source_wrong"]) == {4: [2]}


# ---- how much mass --------------------------------------------------------------------------


def test_mass_uniform_and_shuffled_by_hand() -> None:
    pattern = torch.tensor(
        [[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.3, 0.2]], [[1, 0, 0], [1, 0, 0], [0, 0.1, 0.9]]]
    )
    targets = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]], dtype=bool)
    others = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)  # one of them is a target too
    found = target_mass(pattern, targets, others)
    assert found.queries == 2
    assert found.mass == pytest.approx([0.25 + 0.8, 1.1])
    assert found.uniform == pytest.approx(1 / 2 + 2 / 3)
    assert found.shuffled == pytest.approx([0.75 * 2, 0.0])  # of one query, for two
    assert np.isnan(target_mass(pattern, targets).shuffled).all()


def test_means_pool_tokens_and_resample_prompts() -> None:
    sums, counts = np.array([[1.0, 0.0], [6.0, 0.0], [0.0, 0.0]]), np.array([1, 3, 0])
    found = draw(ratio(sums, counts), 3, n_boot=4000)
    assert found.value.tolist() == [7 / 4, 0.0]
    assert np.nanmin(found.drawn[:, 0]) == 1.0
    assert np.nanmax(found.drawn[:, 0]) == 2.0
    none = float(np.isnan(found.drawn[:, 0]).mean())  # only the empty prompt: (1/3)³
    assert none == pytest.approx(1 / 27, abs=0.015)
    with pytest.raises(SwitchSDError, match="at least 2 prompts"):
        draw(ratio(sums[:1], counts[:1]), 1)


def test_random_repeats_repeat_and_hold_no_token_twice_within_a_period() -> None:
    lens = planted_lens("live")
    texts = random_repeats(lens, 3)
    assert texts == random_repeats(lens, 3) != random_repeats(lens, 3, seed=1)
    for ids in texts:
        period = len(ids) // 4
        assert ids == ids[:period] * 4
        assert len(set(ids[:period])) == period <= VOCAB
    with pytest.raises(SwitchSDError, match="at least 1 text"):
        random_repeats(lens, 0)


# ---- weights --------------------------------------------------------------------------------


def test_eigenvalue_scores_by_hand() -> None:
    assert real(torch.tensor([2.0, -1.0, 1.0]).to(torch.complex64)) == pytest.approx(0.5)
    assert real(torch.zeros(2, dtype=torch.complex64)) == 0.0
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(*size, generator=generator).double() for size in ((6, 2), (2, 6)))
    values = torch.linalg.eigvals(first @ second)  # the large product: four zeros besides
    assert copying(first, second) == pytest.approx(
        float(values.real.sum() / values.abs().sum()), abs=1e-6
    )
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert copying(torch.eye(2), torch.eye(2)) == pytest.approx(1.0)
    assert copying(torch.eye(2), -torch.eye(2)) == pytest.approx(-1.0)
    assert copying(torch.eye(2), rotation) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_weights_are_those_the_model_multiplies_with(tiny: Callable[..., Lens], kind: str) -> None:
    """z = Σ A v, v = normed x W_V (biases are zero here), attn_out = Σ z W_O."""
    lens = tiny(kind, backend="bridge")
    ids = torch.randint(0, 32, (1, 9), generator=torch.Generator().manual_seed(2))
    names = ("ln", "attn.hook_pattern", "attn.hook_z", "hook_attn_out", "hook_resid_pre")
    sites = [f"blocks.1.{name}" for name in names[1:]]
    s = lens.forward(ids, sites=sites).streams
    pattern, z, out, x = (s[site][0] for site in sites)
    children = dict(lens.model.base_model.named_modules())
    norm = children.get("layers.1.input_layernorm", children.get("h.1.ln_1"))
    assert norm is not None
    with torch.no_grad():
        v = torch.einsum("kd,hde->khe", norm(x), head_values(lens, 1))
        expected = torch.einsum("hqk,khe->qhe", pattern, v)
        weight = head_output(lens, 1).weight
        close(z, expected, length=2 * lens.d_model)
        close(out, torch.einsum("qhe,hed->qd", z, weight), length=lens.d_model)


def test_the_unembedding_gives_the_model_s_logits_up_to_scale(tiny: Callable[..., Lens]) -> None:
    for kind in ("llama", "gpt2"):
        lens = tiny(kind)
        ids = torch.arange(8)[None]
        site = "blocks.2.hook_resid_post"
        out = lens.forward(ids, sites=[site])
        assert out.logits is not None
        mine, theirs = out.streams[site][0] @ unembedding(lens).T, out.logits[0]
        scale = (mine * theirs).sum(-1, keepdim=True) / (mine * mine).sum(-1, keepdim=True)
        assert torch.allclose(mine * scale, theirs, atol=1e-4)


# ---- a planted head -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted() -> Lens:
    return planted_lens()


@pytest.fixture(scope="module")
def planted_table(planted: Lens) -> pd.DataFrame:
    random = np.random.default_rng(3)
    rows = []
    for number in range(6):
        drawn = random.permutation(VOCAB).tolist()
        block, other = drawn[: 8 + number], drawn[14:]  # no token twice: one place to look
        rows.append((f"p{number}", [*block, *other], [*block, *other[:4]]))
    corpus = pd.DataFrame(rows, columns=["prompt_id", "prompt_ids", "completion_ids"])
    return head_scores(planted, corpus, n_repeats=4)


def best(table: pd.DataFrame, score: str) -> tuple[int, int]:
    row = table.loc[table[score].idxmax()]
    return int(row["layer"]), int(row["head"])


@pytest.mark.parametrize(
    "score",
    ["stripe", "prefix_matching", "prefix_matching_text", "copy_source", "copy_source_right"],
)
def test_exactly_the_planted_head_is_found(planted_table: pd.DataFrame, score: str) -> None:
    assert best(planted_table, score) == INDUCTION
    assert len(planted_table) == 8
    found = planted_table.set_index(["layer", "head"])
    least = 0.55 if score == "stripe" else 0.9  # three occurrences share a later query's mass
    assert found.loc[INDUCTION, score] > least
    assert found.loc[INDUCTION, f"{score}_low"] <= found.loc[INDUCTION, score]
    assert found.loc[INDUCTION, score] <= found.loc[INDUCTION, f"{score}_high"]
    assert found.loc[INDUCTION, f"{score}_shuffled"] < 0.1
    others = found.drop(index=[INDUCTION])
    assert (others[score] < 2.5 * others[f"{score}_uniform"]).all()


def test_the_head_that_feeds_it_is_the_previous_token_head(planted_table: pd.DataFrame) -> None:
    assert best(planted_table, "previous_token") == PREVIOUS
    found = planted_table.set_index(["layer", "head"])
    assert found.loc[PREVIOUS, "previous_token"] > 0.95
    assert found["previous_token_shuffled"].isna().all()  # the same place in every text
    assert found["kv_head"].tolist() == [0, 0, 1, 1] * 2


def test_only_the_planted_head_copies(planted_table: pd.DataFrame) -> None:
    found = planted_table.set_index(["layer", "head"])
    for score in ("copying", "copying_embedding", "copying_rate"):
        assert best(planted_table, score) == INDUCTION, score
        assert found.loc[INDUCTION, score] == pytest.approx(1.0, abs=1e-3)
    assert found.loc[PREVIOUS, "copying"] == pytest.approx(0.0, abs=1e-6)  # moves, copies nothing
    assert abs(found.loc[INDUCTION, "copying_shuffled"]) < 0.9
    assert found.loc[INDUCTION, "copying_rate_low"] < 1 <= found.loc[INDUCTION, "copying_rate_high"]
    assert found.loc[INDUCTION, "copying_rate_uniform"] == pytest.approx(5 / VOCAB)


def test_a_score_without_a_target_anywhere_is_nan(planted: Lens) -> None:
    targets = text_targets([1, 2, 3, 4], 0)
    table = head_table(
        pd.concat([score_text(planted, [1, 2, 3, 4], targets).assign(prompt_id=t) for t in (0, 1)])
    )
    assert table["copy_source"].isna().all()
    assert (table["copy_source_queries"] == 0).all()
    assert table["stripe"].isna().all()
    assert table["previous_token"].notna().all()


def test_texts_of_one_prompt_count_as_one(planted: Lens) -> None:
    one, other = [1, 2, 3, 4, 1, 2], [7, 8, 7, 8]
    sums = [score_text(planted, ids, text_targets(ids, 0)) for ids in (one, other)]
    apart = head_table(pd.concat([table.assign(prompt_id=t) for t, table in enumerate(sums)]))
    with pytest.raises(SwitchSDError, match="at least 2 prompts"):
        head_table(pd.concat([table.assign(prompt_id=0) for table in sums]))
    twice = [table.assign(prompt_id=t) for t, table in enumerate(sums)] * 2
    pd.testing.assert_series_equal(
        head_table(pd.concat(twice))["prefix_matching_text_high"],
        apart["prefix_matching_text_high"],
    )


def test_long_texts_go_layer_by_layer(planted: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(10))
    whole = dict(patterns(planted, ids))
    monkeypatch.setattr("switchsd.analysis.explain.attention._PATTERN_BYTES", 1)
    for layer, pattern in patterns(planted, ids):
        assert torch.equal(pattern, whole[layer])  # the same forward, cut short: the same bits


def test_bad_input_is_named(planted: Lens, tiny: Callable[..., Lens]) -> None:
    with pytest.raises(SwitchSDError, match="bridge"):
        list(patterns(planted_lens("live"), [1, 2]))
    with pytest.raises(SwitchSDError, match="300 tokens"):
        list(patterns(planted, [1] * 300))
    with pytest.raises(SwitchSDError, match="at least 1 token"):
        copying_scores(planted, n_tokens=0)
    with pytest.raises(SwitchSDError, match="norm between"):
        head_output(tiny("gemma3"), 0)
