"""How good a probe is, with intervals over prompts: F1, AUROC, average precision, calibration.

Tokens of one prompt are not independent, so splits and bootstrap draw whole prompts. Scores are
higher for copy mode; y is 1 (or True) for copy mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

from ..errors import SwitchSDError
from .logistic import raise_not_finite

Statistic = Callable[..., float]


class OneClassError(SwitchSDError):
    """All tokens carry the same label, so the figure asked for does not exist."""

    @classmethod
    def of(cls, y: Shaped[np.ndarray, " n"]) -> OneClassError:
        """The message for these labels."""
        if len(y) == 0:
            return cls("no tokens to evaluate; use more prompts or longer completions")
        kind = "copy" if bool(np.asarray(y)[0]) else "non-copy"
        return cls(f"all {len(y)} tokens are {kind} tokens (one class only); use more prompts")


def require_both_classes(y: Shaped[np.ndarray, " n"]) -> None:
    """Raise `OneClassError` unless there are copy and non-copy tokens."""
    if len(np.unique(np.asarray(y).astype(bool))) < 2:
        raise OneClassError.of(y)


def check_matrix(X: Shaped[np.ndarray, "n d"], y: Shaped[np.ndarray, " n"]) -> None:
    """Refuse what no probe can be fitted on.

    Raises `SwitchSDError` on shapes that do not fit, NaN or infinite activations, and one class.
    """
    if X.ndim != 2 or y.shape != (len(X),):
        raise SwitchSDError(f"activations {X.shape} and labels {y.shape} do not fit together")
    if not np.isfinite(X).all():
        raise_not_finite(X)
    require_both_classes(y)


def roc_auc(y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Area under the ROC curve; ties count half, as in scikit-learn's `roc_auc_score`.

    Raises `OneClassError` when only one class is there.
    """
    true, false, _ = _counts_from_top(y, scores)
    require_both_classes(y)
    heights = np.diff(false, prepend=0) * (true + np.concatenate([[0], true[:-1]]))
    return float(heights.sum() / (2 * true[-1] * false[-1]))


def average_precision(y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Σ (recall step) · precision, as scikit-learn's `average_precision_score`.

    Raises `OneClassError` when no token is a copy token.
    """
    true, false, _ = _counts_from_top(y, scores)
    if true[-1] == 0:
        raise OneClassError.of(y)
    return float((np.diff(true, prepend=0) * true / (true + false)).sum() / true[-1])


def brier(y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"]) -> float:
    """Mean squared difference of probability and label; lower is better."""
    _probabilities(y, p)
    return float(np.mean((np.asarray(p, np.float64) - np.asarray(y, np.float64)) ** 2))


def calibration_curve(
    y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"], *, bins: int = 10
) -> pd.DataFrame:
    """Said against seen, in equal bins of probability; empty bins are left out.

    Columns: low, high (edges of the bin), n, mean_score, share (of copy tokens).
    """
    _probabilities(y, p)
    edges = np.linspace(0, 1, bins + 1)
    which = np.clip(np.digitize(p, edges) - 1, 0, bins - 1)
    n = np.bincount(which, minlength=bins)
    said = np.bincount(which, weights=p, minlength=bins)
    seen = np.bincount(which, weights=y, minlength=bins)
    sums = {"low": edges[:-1], "high": edges[1:], "n": n, "mean_score": said, "share": seen}
    table = pd.DataFrame(sums)[n > 0].reset_index(drop=True)
    return table.assign(
        mean_score=table["mean_score"] / table["n"], share=table["share"] / table["n"]
    )


@dataclass(frozen=True)
class Confusion:
    """Counts of tokens; "positive" is score ≥ τ."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    @property
    def f1(self) -> float:
        """2TP / (2TP + FP + FN); 0 where nothing is positive, as in scikit-learn."""
        wrong = self.false_positive + self.false_negative
        return 2 * self.true_positive / max(2 * self.true_positive + wrong, 1)


def confusion(y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"], tau: float) -> Confusion:
    """Tokens by label and by score ≥ tau."""
    y, said = np.asarray(y).astype(bool), np.asarray(p) >= tau
    both, labelled, claimed = int((y & said).sum()), int(y.sum()), int(said.sum())
    return Confusion(both, claimed - both, labelled - both, len(y) - claimed - labelled + both)


def f1_at(y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"], tau: float) -> float:
    """F1 of saying copy where score ≥ tau."""
    return confusion(y, p, tau).f1


def f1_always_copy(y: Shaped[np.ndarray, " n"]) -> float:
    """F1 of saying copy at every token: 2π / (1 + π) at prevalence π."""
    return f1_at(y, np.ones(len(y)), 0.5)


def best_f1_threshold(
    y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"]
) -> tuple[float, float]:
    """The score τ with the greatest F1 of "score ≥ τ", and that F1; the highest τ among equals.

    Exact over all distinct scores, O(n log n). Raises `OneClassError` without any copy token.
    """
    true, false, thresholds = _counts_from_top(y, p)
    if true[-1] == 0:
        raise OneClassError.of(y)
    f1 = 2 * true / (true + false + true[-1])
    best = int(np.argmax(f1))
    return float(thresholds[best]), float(f1[best])


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval; `skipped` resamples had one class only and are not in it."""

    value: float
    low: float
    high: float
    skipped: int = 0


def bootstrap(
    stat: Statistic,
    groups: Shaped[np.ndarray, " n"],
    *arrays: Shaped[np.ndarray, " n"],
    n_boot: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """`stat(*arrays)` with a percentile interval from resampling whole prompts.

    `stat` must not depend on the order of tokens. Arrays are sorted by the last one first, which
    makes the sort inside AUROC linear.

    Raises `SwitchSDError` with fewer than two prompts.
    """
    value = stat(*arrays)
    sample = _Resampler(groups, n_boot, seed)
    ordered = sample.sort(arrays)
    drawn = [sample.apply(stat, ordered, draw) for draw in range(n_boot)]
    return _interval(value, drawn, level)


def bootstrap_difference(
    stat: Statistic,
    groups: Shaped[np.ndarray, " n"],
    y: Shaped[np.ndarray, " n"],
    first: Float[np.ndarray, " n"],
    second: Float[np.ndarray, " n"],
    *,
    n_boot: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """stat(y, first) − stat(y, second), paired: both are computed on the same resampled prompts.

    Raises `SwitchSDError` with fewer than two prompts.
    """
    value = stat(y, first) - stat(y, second)
    sample = _Resampler(groups, n_boot, seed)
    a, b = sample.sort((y, first)), sample.sort((y, second))
    drawn: list[float | None] = []
    for draw in range(n_boot):
        left, right = sample.apply(stat, a, draw), sample.apply(stat, b, draw)
        drawn.append(None if left is None or right is None else left - right)
    return _interval(value, drawn, level)


def split_groups(
    groups: Shaped[np.ndarray, " n"],
    *,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int,
    stratify_by: Shaped[np.ndarray, " n"] | None = None,
) -> tuple[Int[np.ndarray, " _"], ...]:
    """Token indices of train, validation and test; all tokens of a prompt are in one of them.

    With `stratify_by` (a family a token) each family is shared out in the same fractions.

    Raises `SwitchSDError` when there are too few prompts for every part to get one.
    """
    if min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise SwitchSDError(f"fractions must be positive and sum to 1, got {tuple(fractions)}")
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    family = np.zeros(len(names), int)
    if stratify_by is not None:
        kinds = np.unique(np.asarray(stratify_by), return_inverse=True)[1]
        family[codes] = kinds
        if (family[codes] != kinds).any():
            raise SwitchSDError("a prompt belongs to two families; give every prompt one family")
    random = np.random.default_rng(seed)
    order = random.permutation(len(names))
    order = order[np.argsort(random.permutation(family.max(initial=0) + 1)[family[order]])]
    # Deal out prompts family by family, each to the part that is furthest behind its share: any
    # stretch of the order, so any family, comes out close to the fractions.
    shares, dealt, part = np.asarray(fractions), np.zeros(len(fractions)), np.empty(len(names), int)
    for count, prompt in enumerate(order, start=1):
        part[prompt] = np.argmax(np.round(count * shares - dealt, 9))
        dealt[part[prompt]] += 1
    if (dealt == 0).any():
        need = int(np.ceil(1 / min(fractions) - 1e-9))
        raise SwitchSDError(
            f"{len(names)} prompts are too few to split {tuple(fractions)}; use at least {need}"
        )
    return tuple(np.flatnonzero(part[codes] == index) for index in range(len(fractions)))


class _Resampler:
    """Draws prompts with replacement; every array keeps its sorted order in every draw."""

    def __init__(self, groups: Shaped[np.ndarray, " n"], n_boot: int, seed: int) -> None:
        names, self.codes = np.unique(np.asarray(groups), return_inverse=True)
        if len(names) < 2:
            raise SwitchSDError(
                f"an interval needs at least 2 prompts, got {len(names)}; use more prompts"
            )
        random = np.random.default_rng(seed)
        shares = np.full(len(names), 1 / len(names))
        self.copies = random.multinomial(len(names), shares, size=n_boot)

    def sort(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        order = np.argsort(arrays[-1], kind="stable")
        return [self.codes[order], *(np.asarray(array)[order] for array in arrays)]

    def apply(self, stat: Statistic, ordered: list[np.ndarray], draw: int) -> float | None:
        codes, *arrays = ordered
        rows = np.repeat(np.arange(len(codes)), self.copies[draw][codes])
        try:
            return stat(*(array[rows] for array in arrays))
        except OneClassError:
            return None


def _interval(value: float, drawn: Sequence[float | None], level: float) -> Estimate:
    kept = [figure for figure in drawn if figure is not None]
    if not kept:
        raise SwitchSDError("every resample has one class only; use more prompts")
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), skipped=len(drawn) - len(kept))


def _counts_from_top(
    y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """True and false positives at "score ≥ threshold", for every distinct score, highest first."""
    y, scores = np.asarray(y).astype(bool), np.asarray(scores)
    if y.shape != scores.shape or y.ndim != 1:
        raise SwitchSDError(f"labels {y.shape} and scores {scores.shape} do not fit together")
    if len(y) == 0:
        raise OneClassError.of(y)
    order = np.argsort(scores, kind="stable")[::-1]
    y, scores = y[order], scores[order]
    if np.isnan(scores[0]):  # NaN sorts to the end, which is now the start
        raise SwitchSDError("scores hold NaN; fit the probe again on finite activations")
    last = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(y) - 1)
    true = np.cumsum(y)[last]
    return true, last + 1 - true, scores[last]


def _probabilities(y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"]) -> None:
    if np.shape(y) != np.shape(p) or len(y) == 0 or not (np.min(p) >= 0 and np.max(p) <= 1):
        raise SwitchSDError("probabilities must be one number from 0 to 1 a token")
