from __future__ import annotations

import numpy as np
import pytest
from switchsd.errors import SwitchSDError
from switchsd.probing.lab.controls import (
    prompt_only_labels,
    random_label_per_token_type,
    shuffled_labels,
)
from switchsd.probing.training.metrics import roc_auc


def _runs(y: np.ndarray) -> int:
    return int(np.count_nonzero(np.diff(y.astype(int))))


def test_shuffled_labels_keep_prevalence_and_spans_but_not_the_tokens() -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(80), 40)
    y = np.repeat(random.random(len(groups) // 8) < 0.4, 8)
    scores = y + 0.1 * random.standard_normal(len(y))
    shuffled = [shuffled_labels(y, groups, seed) for seed in range(20)]
    assert all(control.sum() == y.sum() for control in shuffled)
    assert np.mean([roc_auc(control, scores) for control in shuffled]) == pytest.approx(
        0.5, abs=0.03
    )
    # A token-wise permutation would have about four times as many runs.
    assert all(abs(_runs(control) - _runs(y)) <= 85 for control in shuffled)
    assert np.array_equal(shuffled[0], shuffled_labels(y, groups, 0))
    assert not np.array_equal(shuffled[0], shuffled[1])


def test_shuffled_labels_take_prompts_in_any_order() -> None:
    groups = np.array(["b", "a", "b", "a", "c", "c"])
    y = np.array([1, 0, 1, 0, 0, 0])
    for seed in range(30):
        control = shuffled_labels(y, groups, seed)
        assert control.sum() == 2
        assert control.dtype == bool
    with pytest.raises(SwitchSDError, match="cannot be shuffled"):
        shuffled_labels(y[:1], groups[:1], 0)


def test_one_label_per_token_type_in_train_and_test() -> None:
    random = np.random.default_rng(0)
    train, test = random.integers(0, 5_000, 3_000), random.integers(0, 9_000, 3_000)
    coins = dict(zip(train, random_label_per_token_type(train, 7, 0.3), strict=True))
    again = random_label_per_token_type(test, 7, 0.3)
    shared = [(coins[i], label) for i, label in zip(test, again, strict=True) if i in coins]
    assert len(shared) > 500
    assert all(a == b for a, b in shared)
    assert np.mean(list(coins.values())) == pytest.approx(0.3, abs=0.05)
    assert not np.array_equal(again, random_label_per_token_type(test, 8, 0.3))
    with pytest.raises(SwitchSDError, match="between 0 and 1"):
        random_label_per_token_type(train, 7, 1.0)


def test_prompt_only_labels_are_constant_within_and_balanced_across() -> None:
    groups = np.array([f"p{i % 30}" for i in range(300)])
    y = prompt_only_labels(groups, 3)
    per_prompt = {g: set(y[groups == g]) for g in set(groups)}
    assert all(len(values) == 1 for values in per_prompt.values())
    assert sum(values == {True} for values in per_prompt.values()) == 15
    assert not np.array_equal(y, prompt_only_labels(groups, 4))
    with pytest.raises(SwitchSDError, match="two labels"):
        prompt_only_labels(np.zeros(5), 0)
