"""Figures as functions of how often each prompt counts, against the plain computation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from switchsd import SwitchSDError
from switchsd.intervals import auroc_figure, columns, interval, mean_figure, minus


def sample() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    prompt, y = random.integers(0, 5, 80), random.random(80) < 0.4
    return prompt, y, np.round(random.normal(size=80) + y, 1), random.integers(0, 4, 80)


def test_counting_a_prompt_twice_is_having_its_tokens_twice() -> None:
    prompt, y, score, _ = sample()
    counts = np.array([2, 0, 1, 3, 1])
    rows = np.repeat(np.arange(80), counts[prompt])
    assert auroc_figure(prompt, y, score)(counts) == pytest.approx(
        roc_auc_score(y[rows], score[rows])
    )
    assert mean_figure(prompt, score, 5)(counts) == pytest.approx(score[rows].mean())


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
    assert auroc_figure(prompt, y, score, strata)(counts) == pytest.approx(won / pairs)
    assert auroc_figure(prompt, y, strata.astype(float), strata)(counts) == 0.5


def test_what_does_not_exist_is_nan() -> None:
    prompt, y, score, _ = sample()
    ones = np.ones(5, np.int64)
    assert np.isnan(auroc_figure(prompt, np.ones(80, bool), score)(ones))
    assert np.isnan(auroc_figure(prompt, y, score, np.arange(80))(ones))
    assert np.isnan(auroc_figure(prompt[:0], y[:0], score[:0])(ones))
    assert np.isnan(mean_figure(prompt[:0], score[:0], 5)(ones))
    assert np.isnan(interval(lambda counts: float("nan"), 5).low)


def test_draws_widen_the_interval_and_equal_figures_do_not_differ() -> None:
    prompt, _, score, _ = sample()
    figure = mean_figure(prompt, score, 5)
    one = interval(figure, 5)
    assert one.low < one.value < one.high
    far = [mean_figure(prompt, score + shift, 5) for shift in (-5.0, 5.0)]
    several = interval(far, 5)
    assert several.value == pytest.approx(one.value)
    assert several.high - several.low > 5 > one.high - one.low
    same = interval(minus(figure, figure), 5)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert columns("x", same) == {"x": 0.0, "x_low": 0.0, "x_high": 0.0}


def test_one_prompt_has_no_interval() -> None:
    with pytest.raises(SwitchSDError, match="at least 2 prompts"):
        interval(lambda counts: 1.0, 1)
