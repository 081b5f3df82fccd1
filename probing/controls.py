"""Labels that carry no copy mode: what a probe scores on them is not what it is meant to find."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, Shaped

from ..errors import SwitchSDError


def shuffled_labels(
    y: Shaped[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"], seed: int
) -> Bool[np.ndarray, " n"]:
    """The labels, dealt out to other tokens; expect AUROC 0.5.

    The prompts' label sequences are joined in random order, rotated by a random amount and laid
    over the tokens again: prevalence and (but for the seams) the lengths of copy spans stay, so
    the control is as autocorrelated as the real labels.
    """
    labels, random = np.asarray(y).astype(bool), np.random.default_rng(seed)
    if len(labels) < 2:
        raise SwitchSDError(f"{len(labels)} labels cannot be shuffled; use more prompts")
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    mixed = np.argsort(random.permutation(len(names))[codes], kind="stable")
    shuffled = np.empty_like(labels)
    place = np.argsort(codes, kind="stable")
    shuffled[place] = np.roll(labels[mixed], random.integers(1, len(labels)))
    return shuffled


def random_label_per_token_type(
    ids: Int[np.ndarray, " n"], seed: int, prevalence: float
) -> Bool[np.ndarray, " n"]:
    """One coin per vocabulary entry, the same wherever it occurs (Hewitt & Liang, 2019).

    The coin of an id depends on seed, prevalence and id only, so train and test sets agree.
    """
    if not 0 < prevalence < 1:
        raise SwitchSDError(f"prevalence must lie between 0 and 1, got {prevalence}")
    tokens = np.asarray(ids)
    coins = np.random.default_rng(seed).random(int(tokens.max(initial=0)) + 1)
    return (coins < prevalence)[tokens]


def selectivity(task_score: float, control_score: float) -> float:
    """How much better the probe does on the task than on the control (Hewitt & Liang, 2019)."""
    return task_score - control_score


def prompt_only_labels(groups: Shaped[np.ndarray, " n"], seed: int) -> Bool[np.ndarray, " n"]:
    """One label for all tokens of a prompt, half of the prompts each; for the leakage test.

    Under a split by prompt nothing can predict it (AUROC 0.5); under a split by token it leaks.
    """
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        raise SwitchSDError(f"{len(names)} prompt cannot carry two labels; use more prompts")
    rank = np.random.default_rng(seed).permutation(len(names))
    return (rank < len(names) // 2)[codes]
