from __future__ import annotations

import time

import numpy as np
import pytest
from sklearn import metrics as reference
from switchsd.errors import SwitchSDError
from switchsd.intervals import bootstrap, bootstrap_difference
from switchsd.probing.corpora.partition import split_groups
from switchsd.probing.training.metrics import (
    OneClassError,
    average_precision,
    best_f1_threshold,
    brier,
    calibration_curve,
    check_matrix,
    confusion,
    f1_always_copy,
    f1_at,
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


def test_interval_resamples_prompts_and_covers() -> None:
    hits, widths, by_token = 0, [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        groups = np.repeat(np.arange(60), 20)
        rate = random.random(60)[groups]  # tokens of a prompt go together
        y = random.random(len(groups)) < rate
        estimate = bootstrap(lambda labels: float(labels.mean()), groups, y, seed=seed)
        hits += estimate.low <= 0.5 <= estimate.high
        widths.append(estimate.high - estimate.low)
        token = bootstrap(lambda labels: float(labels.mean()), np.arange(len(y)), y, seed=seed)
        by_token.append(token.high - token.low)
    assert hits >= 50  # 95 % would be 57
    assert np.mean(widths) > 1.8 * np.mean(by_token)


def test_bootstrap_of_auroc_equals_plain_resampling_in_value() -> None:
    y, p = _scored(2_000, 50, 1)
    groups = np.repeat([f"prompt-{i}" for i in range(40)], 50)
    estimate = bootstrap(roc_auc, groups, y, p, n_boot=300)
    assert estimate.value == pytest.approx(reference.roc_auc_score(y, p))
    random = np.random.default_rng(7)
    drawn = []
    for _ in range(300):
        rows = np.concatenate([np.arange(50) + 50 * g for g in random.integers(0, 40, 40)])
        drawn.append(reference.roc_auc_score(y[rows], p[rows]))
    assert estimate.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.01)
    assert estimate.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.01)
    assert estimate == bootstrap(roc_auc, groups, y, p, n_boot=300)


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    y, p = _scored(3_000, 10**9, 2)
    groups = np.repeat(np.arange(30), 100)
    worse = p + 0.1 * np.random.default_rng(0).random(len(p))
    gain = bootstrap_difference(roc_auc, groups, y, p, worse)
    assert gain.value == pytest.approx(roc_auc(y, p) - roc_auc(y, worse))
    assert gain.low < gain.value < gain.high
    single = bootstrap(roc_auc, groups, y, p)
    assert gain.high - gain.low < 0.7 * (single.high - single.low)
    same = bootstrap_difference(roc_auc, groups, y, p, p)
    assert (same.low, same.high) == (0, 0)


def test_one_class_resamples_are_skipped_and_counted() -> None:
    y = np.array([0, 1, 0, 0, 0, 0])
    p = np.array([0.1, 0.9, 0.2, 0.3, 0.4, 0.5])
    groups = np.array([0, 0, 1, 1, 2, 2])
    estimate = bootstrap(roc_auc, groups, y, p, n_boot=500)
    assert 500 * 0.2 < estimate.skipped < 500 * 0.4  # (2/3)³ of resamples miss prompt 0
    assert estimate.low == 1


def test_200_resamples_of_20_000_tokens_are_quick() -> None:
    y, p = _scored(20_000, 10**9, 5)
    groups = np.repeat(np.arange(100), 200)
    start = time.process_time()
    bootstrap(roc_auc, groups, y, p)
    assert time.process_time() - start < 2  # 0.15 s; a sort a resample takes 0.6 s


@pytest.mark.parametrize("groups", [np.zeros(4), np.array(["a"] * 4)])
def test_an_interval_from_one_prompt_is_refused(groups: np.ndarray) -> None:
    with pytest.raises(SwitchSDError, match="at least 2 prompts, got 1"):
        bootstrap(roc_auc, groups, np.array([0, 1, 0, 1]), np.arange(4.0))


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
    X = np.ones((3, 2), np.float32)
    check_matrix(X, y)
    for bad in (np.nan, np.inf):
        broken = X.copy()
        broken[1, 0] = bad
        with pytest.raises(SwitchSDError, match=r"1 NaN or infinite values .*row 1, column 0"):
            check_matrix(broken, y)
    with pytest.raises(OneClassError, match="all 3 tokens are copy tokens"):
        check_matrix(X, np.ones(3))
    with pytest.raises(SwitchSDError, match="do not fit together"):
        check_matrix(X, np.ones(4))
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
