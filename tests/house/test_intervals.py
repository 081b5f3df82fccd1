"""Statistics as functions of how often each prompt counts, against the plain computation."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from switchsd import SwitchSDError
from switchsd.intervals import auroc, draw, each, interval, mean, minus, prompt_numbers, ratio


def sample() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    prompt, y = random.integers(0, 5, 80), random.random(80) < 0.4
    return prompt, y, np.round(random.normal(size=80) + y, 1), random.integers(0, 4, 80)


def scored(n: int, levels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.random(n) < 0.3
    return y, np.round(np.clip(0.25 * y + 0.75 * random.random(n), 0, 1) * levels) / levels


def test_counting_a_prompt_twice_is_having_its_tokens_twice() -> None:
    prompt, y, score, _ = sample()
    counts = np.array([2, 0, 1, 3, 1])
    rows = np.repeat(np.arange(80), counts[prompt])
    assert auroc(prompt, y, score)(counts) == pytest.approx(roc_auc_score(y[rows], score[rows]))
    assert mean(prompt, score, 5)(counts) == pytest.approx(score[rows].mean())


def test_only_pairs_of_one_stratum_count() -> None:
    prompt, y, score, strata = sample()
    counts = np.array([1, 2, 1, 1, 2])
    weight = counts[prompt]
    won = pairs = 0.0
    for i in np.flatnonzero(y):
        for j in np.flatnonzero(~y & (strata == strata[i])):
            both = weight[i] * weight[j]
            pairs += both
            won += both * (1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0)
    assert auroc(prompt, y, score, strata)(counts) == pytest.approx(won / pairs)
    assert auroc(prompt, y, strata.astype(float), strata)(counts) == 0.5


def test_what_does_not_exist_is_nan() -> None:
    prompt, y, score, _ = sample()
    ones = np.ones(5, np.int64)
    assert np.isnan(auroc(prompt, np.ones(80, bool), score)(ones))
    assert np.isnan(auroc(prompt, y, score, np.arange(80))(ones))
    assert np.isnan(auroc(prompt[:0], y[:0], score[:0])(ones))
    assert np.isnan(mean(prompt[:0], score[:0], 5)(ones))
    assert np.isnan(interval(each(lambda counts: float("nan")), 5).low)


def test_repeats_widen_the_interval_and_equal_statistics_do_not_differ() -> None:
    prompt, _, score, _ = sample()
    whole = mean(prompt, score, 5)
    one = interval(whole, 5)
    assert one.low < one.value < one.high
    far = [mean(prompt, score + shift, 5) for shift in (-5.0, 5.0)]
    several = interval(far, 5)
    assert several.value == pytest.approx(one.value)
    assert several.high - several.low > 5 > one.high - one.low
    same = interval(minus(whole, whole), 5)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert same.columns("x") == {"x": 0.0, "x_low": 0.0, "x_high": 0.0}


def test_one_prompt_has_no_interval() -> None:
    with pytest.raises(SwitchSDError, match="at least 2 prompts"):
        interval(each(lambda counts: 1.0), 1)


def test_interval_resamples_prompts_and_covers() -> None:
    hits, widths, by_token = 0, [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        groups = np.repeat(np.arange(60), 20)
        rate = random.random(60)[groups]  # tokens of a prompt go together
        y = random.random(len(groups)) < rate
        estimate = interval(mean(groups, y, 60), 60, seed=seed)
        hits += estimate.low <= 0.5 <= estimate.high
        widths.append(estimate.high - estimate.low)
        token = interval(mean(np.arange(len(y)), y, len(y)), len(y), seed=seed)
        by_token.append(token.high - token.low)
    assert hits >= 50  # 95 % would be 57
    assert np.mean(widths) > 1.8 * np.mean(by_token)


def test_interval_of_auroc_is_that_of_plain_resampling() -> None:
    y, p = scored(2_000, 50, 1)
    groups, n = prompt_numbers(np.repeat([f"prompt-{i:02}" for i in range(40)], 50))
    estimate = interval(auroc(groups, y, p), n, n_boot=300)
    assert estimate.value == pytest.approx(roc_auc_score(y, p))
    random = np.random.default_rng(7)
    drawn = []
    for _ in range(300):
        rows = np.concatenate([np.arange(50) + 50 * g for g in random.integers(0, 40, 40)])
        drawn.append(roc_auc_score(y[rows], p[rows]))
    assert estimate.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.01)
    assert estimate.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.01)
    assert estimate == interval(auroc(groups, y, p), n, n_boot=300)


def test_paired_difference_is_narrower_than_two_intervals() -> None:
    y, p = scored(3_000, 10**9, 2)
    groups = np.repeat(np.arange(30), 100)
    worse = p + 0.1 * np.random.default_rng(0).random(len(p))
    gain = interval(minus(auroc(groups, y, p), auroc(groups, y, worse)), 30)
    assert gain.value == pytest.approx(roc_auc_score(y, p) - roc_auc_score(y, worse))
    assert gain.low < gain.value < gain.high
    single = interval(auroc(groups, y, p), 30)
    assert gain.high - gain.low < 0.7 * (single.high - single.low)


def test_one_class_resamples_are_skipped_and_counted() -> None:
    y = np.array([0, 1, 0, 0, 0, 0])
    p = np.array([0.1, 0.9, 0.2, 0.3, 0.4, 0.5])
    groups = np.array([0, 0, 1, 1, 2, 2])
    estimate = interval(auroc(groups, y, p), 3, n_boot=500)
    assert 500 * 0.2 < estimate.skipped < 500 * 0.4  # (2/3)³ of resamples miss prompt 0
    assert estimate.low == 1


def test_200_resamples_of_20_000_tokens_are_quick() -> None:
    y, p = scored(20_000, 10**9, 5)
    groups = np.repeat(np.arange(100), 200)
    start = time.process_time()
    interval(auroc(groups, y, p), 100)
    assert time.process_time() - start < 2  # 0.15 s; a sort a resample takes 0.6 s


def test_over_nothing_is_infinite_and_one_prompt_is_always_drawn() -> None:
    found = draw(ratio(np.ones(2), np.array([0, 1])), 2).estimate()
    assert (found.value, found.low, found.high, found.skipped) == (2.0, 1.0, np.inf, 0)
    alone = draw(ratio(np.array([3.0]), np.array([2])), 1, least=1).estimate()
    assert (alone.value, alone.low, alone.high) == (1.5, 1.5, 1.5)
