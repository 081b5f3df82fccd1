from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as reference
from switchsd.errors import SwitchSDError
from switchsd.probing.corpora.partition import split_groups
from switchsd.probing.training.metrics import (
    OneClassError,
    average_precision,
    best_f1_threshold,
    brier,
    calibration_curve,
    confusion,
    evaluate,
    f1_always_copy,
    f1_at,
    f1_of_prompts,
    roc_auc,
)


def _scored(n: int, levels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.random(n) < 0.3
    p = np.clip(0.25 * y + 0.75 * random.random(n), 0, 1)
    return y, np.round(p * levels) / levels  # few levels make many ties


@pytest.mark.parametrize("levels", [1, 3, 20, 10**9])
@pytest.mark.parametrize("seed", range(3))
def test_ranking_figures_equal_scikit_learn_with_ties(levels: int, seed: int) -> None:
    y, p = _scored(400, levels, seed)
    assert roc_auc(y, p) == pytest.approx(reference.roc_auc_score(y, p), abs=1e-12)
    assert average_precision(y, p) == pytest.approx(
        reference.average_precision_score(y, p), abs=1e-12
    )
    assert brier(y, p) == pytest.approx(reference.brier_score_loss(y, p), abs=1e-12)


@pytest.mark.parametrize("levels", [1, 5, 10**9])
def test_f1_threshold_is_the_best_of_all(levels: int) -> None:
    y, p = _scored(150, levels, 3)
    tried = {tau: reference.f1_score(y, p >= tau) for tau in np.unique(p)}
    tau, f1 = best_f1_threshold(y, p)
    assert f1 == pytest.approx(max(tried.values()), abs=1e-12)
    assert f1_at(y, p, tau) == pytest.approx(f1, abs=1e-12)
    assert tau == max(t for t, value in tried.items() if value > f1 - 1e-12)


def test_f1_of_a_threshold_and_of_always_copy() -> None:
    y, p = _scored(300, 10, 0)
    counts = confusion(y, p, 0.5)
    table = reference.confusion_matrix(y, p >= 0.5)
    assert table.ravel().tolist() == [
        counts.true_negative,
        counts.false_positive,
        counts.false_negative,
        counts.true_positive,
    ]
    assert f1_at(y, p, 0.5) == pytest.approx(reference.f1_score(y, p >= 0.5))
    assert f1_always_copy(y) == pytest.approx(reference.f1_score(y, np.ones(len(y))))
    assert f1_at(np.zeros(4), np.zeros(4), 0.5) == 0


def test_f1_of_counted_prompts_is_f1_of_their_tokens() -> None:
    y, p = _scored(120, 10, 4)
    prompt, counts = np.arange(120) % 6, np.array([2, 0, 1, 3, 0, 1])
    rows = np.repeat(np.arange(120), counts[prompt])
    assert f1_of_prompts(prompt, y, p, 0.5)(counts) == f1_at(y[rows], p[rows], 0.5)
    assert f1_of_prompts(prompt, 0 * y, 0 * p, 0.5)(counts) == 0  # nothing is positive


def test_an_evaluation_has_intervals_over_prompts() -> None:
    y, p = _scored(600, 10, 6)
    groups = np.repeat([f"p{i}" for i in range(20)], 30)
    found = evaluate(y, p, groups, 0.5)
    assert found.auroc.value == pytest.approx(reference.roc_auc_score(y, p))
    assert found.f1.value == f1_at(y, p, 0.5)
    assert found.auroc.low < found.auroc.value < found.auroc.high
    assert (found.n_tokens, found.n_prompts) == (600, 20)
    with pytest.raises(OneClassError):
        evaluate(np.ones(600), p, groups, 0.5)
    with pytest.raises(SwitchSDError, match="at least 2 prompts"):
        evaluate(y, p, np.zeros(600), 0.5)


def test_calibration_curve_tells_a_calibrated_score_from_a_bold_one() -> None:
    random = np.random.default_rng(0)
    p = random.random(40_000)
    y = random.random(40_000) < p
    table = calibration_curve(y, p)
    assert len(table) == 10
    assert table["n"].sum() == 40_000
    assert (table["share"] - table["mean_score"]).abs().max() < 0.03
    bold = calibration_curve(y, (p > 0.5).astype(float))
    assert bold["low"].tolist() == [0.0, 0.9]  # empty bins are left out, 1.0 is in the last
    assert (bold["share"] - bold["mean_score"]).abs().min() > 0.2


def test_split_keeps_prompts_whole_and_fractions() -> None:
    random = np.random.default_rng(0)
    groups = random.permutation(np.repeat(np.arange(50), random.integers(1, 30, 50)))
    parts = split_groups(groups, seed=1)
    assert sorted(np.concatenate(parts)) == list(range(len(groups)))
    prompts = [set(groups[part]) for part in parts]
    assert [len(p) for p in prompts] == [30, 10, 10]
    assert not prompts[0] & prompts[1] | prompts[0] & prompts[2] | prompts[1] & prompts[2]
    again, other = split_groups(groups, seed=1), split_groups(groups, seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert set(groups[other[0]]) != prompts[0]


@pytest.mark.parametrize("seed", range(5))
def test_split_shares_out_every_family(seed: int) -> None:
    groups = np.repeat([f"p{i}" for i in range(100)], 3)
    family = np.repeat([f"f{i % 10}" for i in range(100)], 3)
    for part, expected in zip(
        split_groups(groups, seed=seed, stratify_by=family), (6, 2, 2), strict=True
    ):
        counts = [len(set(groups[part][family[part] == f"f{k}"])) for k in range(10)]
        assert all(abs(count - expected) <= 1 for count in counts)


def test_split_refuses_too_few_prompts_and_split_families() -> None:
    with pytest.raises(SwitchSDError, match=r"3 prompts are too few .* at least 5"):
        split_groups(np.array(["a", "b", "c"]), seed=0)
    assert all(len(part) for part in split_groups(np.arange(5), seed=0))
    with pytest.raises(SwitchSDError, match="two families"):
        split_groups(np.zeros(2), seed=0, stratify_by=np.array(["x", "y"]))
    with pytest.raises(SwitchSDError, match="sum to 1"):
        split_groups(np.arange(9), fractions=(0.5, 0.2), seed=0)


def test_bad_input_is_named() -> None:
    y = np.array([0, 1, 1])
    with pytest.raises(OneClassError, match="all 3 tokens are copy tokens"):
        roc_auc(np.ones(3), np.arange(3.0))
    with pytest.raises(SwitchSDError, match="do not fit together"):
        roc_auc(np.ones(4), np.arange(3.0))
    with pytest.raises(OneClassError, match="non-copy"):
        roc_auc(np.zeros(3), np.arange(3.0))
    with pytest.raises(OneClassError):
        best_f1_threshold(np.zeros(3), np.arange(3.0))
    with pytest.raises(SwitchSDError, match="no tokens"):
        average_precision(np.zeros(0), np.zeros(0))
    with pytest.raises(SwitchSDError, match="scores hold NaN"):
        roc_auc(y, np.array([0.1, np.nan, 0.3]))
    with pytest.raises(SwitchSDError, match="from 0 to 1"):
        brier(y, np.array([0.1, 0.2, 1.3]))
