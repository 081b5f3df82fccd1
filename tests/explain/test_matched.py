"""The matched study: what the strata fix says nothing within them, what is left is found."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from planted_copy import planted_model, planted_probe, planted_texts
from switchsd import SwitchSDError
from switchsd.analysis.causal.copy_texts import CopyTexts, copy_texts
from switchsd.analysis.causal.matched import (
    Matched,
    logit_parts,
    matched_parts,
    matched_positions,
    matched_study,
    surface_score,
)
from switchsd.analysis.explain.reading import reading
from synthetic_probing import CLASSES, texts

BY_HAND = Matched(
    place=np.arange(7),
    prompt=np.array([0, 0, 1, 1, 0, 1, 1]),
    goes_on=np.array([True, False, False, True, True, False, True]),
    stratum=np.array([0, 0, 0, 1, 1, 1, 2]),
    n_prompts=2,
)


@pytest.fixture(scope="module")
def synthetic() -> CopyTexts:
    corpus = texts(20)
    return copy_texts(corpus, CLASSES)


def test_by_hand() -> None:
    assert BY_HAND.n_pairs == 2 + 2
    assert BY_HAND.mixed.tolist() == [True] * 6 + [False]
    score = np.array([3.0, 1.0, 4.0, 2.0, 0.0, 0.0, -9.0])
    [row] = matched_study(BY_HAND, {"score": score}).to_dict("records")
    # stratum 0: 3 > 1 and 3 < 4; stratum 1: 2 > 0 and a tie
    assert row["auroc_within"] == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert (row["n_positions"], row["n_strata"], row["n_pairs"]) == (6, 2, 4)
    assert row["first_gain"] == 0
    parts = pd.DataFrame({"part": ["a", "b"]})
    values = np.column_stack([score, np.array([0, 0, 0, 1.0, 1.0, 0, 5.0])])
    table = matched_parts(BY_HAND, parts, values)
    # a: (3−1 + 3−4 + 2−0 + 0−0) / 4; b: (0 + 0 + 1 + 1) / 4
    assert table["difference"].tolist() == pytest.approx([0.75, 0.5])
    assert table["share"].tolist() == pytest.approx([0.6, 0.4])
    assert table["auroc_within"].tolist() == pytest.approx([2.5 / 4, 3 / 4])


def test_what_the_strata_fix_says_nothing_within_them(synthetic: CopyTexts) -> None:
    matched = matched_positions(synthetic)
    tokens = synthetic.tokens.iloc[matched.place]
    random = np.random.default_rng(0)
    hint = matched.goes_on + random.normal(size=len(matched.place))
    scores = {
        "hint": hint,
        "match length": tokens["match_length"].to_numpy(float),
        "noise": random.normal(size=len(hint)),
    }
    table = matched_study(matched, scores).set_index("score")
    assert table.loc["match length", "auroc_within"] == 0.5
    assert table.loc["match length", "auroc"] != 0.5
    assert table.loc["hint", "auroc_within_low"] > 0.6
    assert table.loc["noise", "auroc_within_low"] < 0.5 < table.loc["noise", "auroc_within_high"]
    assert table.loc["noise", "first_gain"] == pytest.approx(
        table.loc["hint", "auroc_within"] - table.loc["noise", "auroc_within"]
    )
    assert table.loc["noise", "first_gain_low"] > 0


def test_strata_are_equal_in_all_three(synthetic: CopyTexts) -> None:
    matched = matched_positions(synthetic)
    table = matched.strata(synthetic)
    assert table["goes_on"].min() > 0
    assert table["does_not"].min() > 0
    assert (table["goes_on"] * table["does_not"]).sum() == matched.n_pairs
    assert not table.duplicated(["match_length", "token_class", "repetitions"]).any()
    first = table.iloc[0]
    mine = synthetic.tokens.iloc[matched.place[matched.stratum == first["stratum"]]]
    assert (mine["match_length"] == first["match_length"]).all()
    assert mine["log_count_3"].nunique() == 1
    assert not mine["in_loop"].any()
    assert synthetic.offered[matched.place].all()


def test_parts_sum_to_the_probes_logit() -> None:
    lens, planted = planted_model(noise=0.01), planted_texts()
    probe = planted_probe(lens)
    place = np.flatnonzero(planted.offered)
    matched = Matched(
        place, np.zeros(len(place), int), np.arange(len(place)) % 2 == 0,
        np.zeros(len(place), int), 1,
    )  # fmt: skip
    parts, values = logit_parts(lens, planted, matched, reading(probe), probe.label_offset)
    from switchsd.analysis.causal.teacher_forced import teacher_forced

    table, _ = teacher_forced(lens, planted, probe)
    logit = table["probe"].to_numpy()[matched.place]
    np.testing.assert_allclose(values.sum(1), logit, rtol=1e-4, atol=1e-3)
    shares = matched_parts(matched, parts, values)
    assert shares["share"].sum() == pytest.approx(1)


def test_the_surface_model_is_fitted_on_other_text(synthetic: CopyTexts) -> None:
    train = copy_texts(texts(20, seed=5), CLASSES)
    model = surface_score(train)
    matched = matched_positions(synthetic)
    score = model.logit(synthetic.surface[matched.place])
    assert np.isfinite(score).all()
    assert len(np.unique(score)) > 1


def test_nothing_to_compare_is_named(synthetic: CopyTexts) -> None:
    corpus = pd.DataFrame(
        {"prompt_id": ["p"], "family": ["f"], "prompt_ids": [list(range(3, 15))],
         "completion_ids": [[4, 5, 6, 7, 8, 9, 10]]}
    )  # fmt: skip
    with pytest.raises(SwitchSDError, match="look the same"):
        matched_positions(copy_texts(corpus, CLASSES))
