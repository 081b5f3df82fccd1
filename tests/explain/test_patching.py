"""Gradient against exact patching, where the answer is known: a planted copier, a linear path."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from planted_copy import CLASSES, COPY_HEAD, planted_model, planted_probe, planted_texts
from switchsd import SwitchSDError
from switchsd.analysis.causal.copy_pairs import CopyPair, copy_pairs, kinds_pool
from switchsd.analysis.causal.copy_texts import CopyTexts
from switchsd.analysis.causal.patching import exact_patching, gradient_patching, largest_units
from switchsd.analysis.causal.patching_study import (
    agreement,
    component_shares,
    patch_pairs,
    total_shares,
)
from switchsd.analysis.figures.causal import MLP, REGIONS
from switchsd.probing.lens import Lens


@pytest.fixture(scope="module")
def lens() -> Lens:
    return planted_model(noise=0.01)


@pytest.fixture(scope="module")
def texts() -> CopyTexts:
    return planted_texts()


@pytest.fixture(scope="module")
def pairs(texts: CopyTexts) -> list[CopyPair]:
    return copy_pairs(texts, CLASSES, kinds_pool(texts.corpus, CLASSES), breaks={0})


def test_pairs_lose_every_earlier_occurrence_and_nothing_else(pairs: list[CopyPair]) -> None:
    assert {pair.prompt_id for pair in pairs} == {f"p{number}" for number in range(6)}
    assert max(len([p for p in pairs if p.prompt_id == f"p{number}"]) for number in range(6)) == 6
    for pair in pairs:
        length = len(pair.clean) - pair.copy_start
        assert length >= 3
        source = list(range(pair.copied_from - length, pair.copied_from + 1))
        assert pair.changed == source
        assert pair.clean[pair.copied_from] == pair.target
        assert pair.clean[pair.copy_start :] == pair.clean[source[0] : pair.copied_from]
        assert not set(pair.clean[source[0] : source[-1] + 1]) & {pair.corrupt[p] for p in source}
        assert 0 not in [pair.corrupt[p] for p in source]  # of the same kind: not special
        regions = [REGIONS[i] for i in pair.regions(1)]
        assert regions[-1] == "reader"
        assert regions[-2] == "copy"
        assert [REGIONS[i] for i in pair.regions(2)][-2:] == ["reader", "reader"]
        assert [p for p, name in enumerate(regions) if name == "source"] == source[:-1]
        assert regions[pair.copied_from] == "after_source"


def test_pairs_come_benchmark_by_benchmark_in_turn(texts: CopyTexts, pairs: list[CopyPair]) -> None:
    prompts = list(dict.fromkeys(pair.prompt_id for pair in pairs))
    family = texts.corpus.set_index("prompt_id")["family"]
    assert [family[prompt] for prompt in prompts] == ["f0", "f1", "f0", "f1", "f0", "f1"]


def test_other_places_of_the_last_two_tokens_are_corrupted_too() -> None:
    context = [0, 5, 6, 7, 8, 9, 10, 3, 7, 8, 4]
    corpus = pd.DataFrame(
        {"prompt_id": ["p"], "family": ["f"], "prompt_ids": [context],
         "completion_ids": [[5, 6, 7, 8, 9, 10]]}
    )  # fmt: skip
    from switchsd.analysis.causal.copy_texts import copy_texts

    texts = copy_texts(corpus, CLASSES, breaks={0})
    [pair] = copy_pairs(texts, CLASSES, {1: np.arange(11, 29)}, per_prompt=1, breaks={0})
    assert pair.target == 8
    assert pair.changed == [1, 2, 3, 4, 8, 9]
    with pytest.raises(SwitchSDError, match="from an earlier place"):
        copy_pairs(texts, CLASSES, {1: np.array([5, 6])}, breaks={0})


def test_the_copying_head_carries_the_whole_effect(lens: Lens, pairs: list[CopyPair]) -> None:
    probe = planted_probe(lens)
    components, units = patch_pairs(lens, pairs, probe, exact=5)
    shares = component_shares(components)
    for target in ("copy", "probe"):
        best = shares[shares["target"] == target].sort_values("share").iloc[-1]
        assert (best["layer"], best["head"]) == COPY_HEAD
        assert best["share"] == pytest.approx(1, abs=0.2)
        assert best["at_reader"] == pytest.approx(best["share"], abs=0.02)
    regions = [f"at_{name}" for name in REGIONS]
    np.testing.assert_allclose(shares[regions].sum(axis=1), shares["share"], atol=1e-6)
    totals = total_shares(components).set_index(["target", "kind"])
    heads, mlps = totals.loc[("copy", "heads")], totals.loc[("copy", "MLPs")]
    assert heads["share_low"] <= heads["share"] <= heads["share_high"]
    assert heads["share"] > 0.8
    assert abs(mlps["share"]) < 0.2
    of_heads = shares[(shares["target"] == "copy") & (shares["head"] >= 0)]["share"].sum()
    assert heads["share"] == pytest.approx(of_heads)
    alone = components[components["pair"] == components["pair"].iloc[0]]
    assert component_shares(alone)["share_low"].isna().all()
    top = units[(units["target"] == "copy")].groupby("pair").first()
    assert (top["head"] == COPY_HEAD[1]).all()
    np.testing.assert_allclose(top["exact"], components.groupby("pair")["copy_gap"].first(),
                               rtol=0.1)  # fmt: skip


def test_gradient_and_exact_patching_of_every_unit_agree(lens: Lens, pairs: list[CopyPair]) -> None:
    pair, probe = pairs[0], planted_probe(lens)
    patched = gradient_patching(lens, pair, probe)
    assert len(patched.gradient) == 2 * 5 * len(pair.clean)
    done = exact_patching(lens, pair, probe, patched.gradient, patched.choice)
    assert np.corrcoef(done["copy"], done["copy_exact"])[0, 1] > 0.95
    early = done["position"] < min(pair.changed)
    np.testing.assert_allclose(done.loc[early, ["copy_exact", "probe_exact"]], 0, atol=1e-4)


def test_on_a_linear_path_both_are_equal(lens: Lens, pairs: list[CopyPair]) -> None:
    """From layer 1's heads and MLP to the stream behind them there is only addition."""
    pair, probe = pairs[1], planted_probe(lens)
    patched = gradient_patching(lens, pair, probe)
    done = exact_patching(lens, pair, probe, patched.gradient, patched.choice)
    linear = done[(done["layer"] == 1) & (done["head"] == MLP)]
    np.testing.assert_allclose(linear["probe"], linear["probe_exact"], atol=2e-4)
    assert linear["probe_exact"].abs().max() > 1e-3
    mid = planted_probe(lens, "blocks.1.hook_resid_mid")
    patched = gradient_patching(lens, pair, mid)
    heads = patched.gradient[(patched.gradient["layer"] == 1) & (patched.gradient["head"] != MLP)]
    done = exact_patching(lens, pair, mid, heads, patched.choice)
    np.testing.assert_allclose(done["probe"], done["probe_exact"], atol=2e-4)
    assert done["probe_exact"].abs().max() > 1


def test_agreement_is_the_correlation_over_units() -> None:
    units = pd.DataFrame(
        {"pair": ["a", "a", "b", "b"], "target": "copy", "gradient": [1.0, 2.0, 3.0, -4.0],
         "exact": [2.0, 4.0, 6.0, -8.0]}
    )  # fmt: skip
    [row] = agreement(units).to_dict("records")
    assert row["correlation"] == pytest.approx(1)
    assert row["slope"] == pytest.approx(2)
    assert row["same_sign"] == 1
    units["exact"] = [2.0, 4.0, 6.0, 8.0]
    [row] = agreement(units).to_dict("records")
    expected = np.corrcoef(units["gradient"], units["exact"])[0, 1]
    assert row["correlation"] == pytest.approx(expected)
    assert row["same_sign"] == 0.75
    assert row["correlation_low"] <= row["correlation"] <= row["correlation_high"]


def test_largest_units_go_by_absolute_value() -> None:
    table = pd.DataFrame({"copy": [0.1, -3.0, 2.0], "position": [0, 1, 2]})
    assert largest_units(table, "copy", 2)["position"].tolist() == [1, 2]


def test_bad_pairs_and_units_are_named(lens: Lens, pairs: list[CopyPair]) -> None:
    pair, probe = pairs[0], planted_probe(lens)
    same = CopyPair("p", pair.clean, pair.clean, pair.target, pair.copied_from, pair.copy_start)
    with pytest.raises(SwitchSDError, match="make it choose another"):
        gradient_patching(lens, same, probe)
    with pytest.raises(SwitchSDError, match="none of the 1 pairs"):
        patch_pairs(lens, [same], probe)
    for layer, head, position, words in (
        (2, 0, 0, r"no head 2\.0"),
        (0, 4, 0, r"no head 0\.4"),
        (0, 0, 99, "no position 99"),
    ):
        units = pd.DataFrame({"layer": [layer], "head": [head], "position": [position]})
        with pytest.raises(SwitchSDError, match=words):
            exact_patching(lens, pair, probe, units, 1)
    reading_itself = planted_probe(lens)
    object.__setattr__(reading_itself, "label_offset", 0)
    with pytest.raises(SwitchSDError, match="label offset 0"):
        gradient_patching(lens, pair, reading_itself)


def test_frozen_or_not_the_model_is_left_as_it_was(lens: Lens, pairs: list[CopyPair]) -> None:
    ids = torch.tensor([pairs[0].clean])
    before = lens.forward(ids).logits
    gradient_patching(lens, pairs[0], planted_probe(lens))
    torch.testing.assert_close(lens.forward(ids).logits, before, rtol=0, atol=0)
