"""How good a probe is, with intervals over prompts: F1, AUROC, average precision, calibration.

Tokens of one prompt are not independent, so splits and bootstrap draw whole prompts. Scores are
higher for copy mode; y is 1 (or True) for copy mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped
from sklearn.metrics import average_precision_score, brier_score_loss

from ...errors import OneClassError, SwitchSDError
from ...intervals import Estimate, Statistic, auroc, interval, prompt_numbers, ratio


def require_both_classes(y: Shaped[np.ndarray, " n"]) -> None:
    """Raise `OneClassError` unless there are copy and non-copy tokens."""
    if len(np.unique(np.asarray(y).astype(bool))) < 2:
        raise OneClassError.of(np.asarray(y).tolist())


def roc_auc(y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Area under the ROC curve; ties count half, as in scikit-learn's `roc_auc_score`.

    Raises `OneClassError` when only one class is there.
    """
    true, false, _ = _counts_from_top(y, scores)
    require_both_classes(y)
    heights = np.diff(false, prepend=0) * (true + np.concatenate([[0], true[:-1]]))
    return float(heights.sum() / (2 * true[-1] * false[-1]))


def average_precision(y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Σ (recall step) · precision.

    Raises `OneClassError` when no token is a copy token.
    """
    if not np.any(y):
        raise OneClassError.of(np.asarray(y).tolist())
    return float(average_precision_score(y, scores))


def brier(y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"]) -> float:
    """Mean squared difference of probability and label; lower is better."""
    _probabilities(y, p)
    return float(brier_score_loss(y, p, labels=[False, True], pos_label=True))


def calibration_curve(
    y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"], *, bins: int = 10
) -> pd.DataFrame:
    """Said against seen, in equal bins of probability; empty bins are left out.

    Columns: low, high (edges of the bin), n, mean_score, share (of copy tokens).
    """
    _probabilities(y, p)
    edges = np.linspace(0, 1, bins + 1)
    n, _ = np.histogram(p, edges)
    kept = np.flatnonzero(n)
    said, seen = (
        np.histogram(p, edges, weights=np.asarray(of, float))[0][kept] / n[kept] for of in (p, y)
    )
    bounds = {"low": edges[kept], "high": edges[kept + 1]}
    return pd.DataFrame({**bounds, "n": n[kept], "mean_score": said, "share": seen})


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


def f1_of_prompts(
    prompt: Int[np.ndarray, " n"],
    y: Shaped[np.ndarray, " n"],
    p: Float[np.ndarray, " n"],
    tau: float,
) -> Statistic:
    """`f1_at` as a function of how often each prompt counts."""
    y, said = np.asarray(y).astype(bool), np.asarray(p) >= tau
    both, either = np.bincount(prompt, 2 * (y & said)), np.bincount(prompt, 1 * y + said)
    f1 = ratio(both, either)
    return lambda counts: np.nan_to_num(f1(counts))


def f1_always_copy(y: Shaped[np.ndarray, " n"]) -> float:
    """F1 of saying copy at every token: 2π / (1 + π) at prevalence π."""
    return f1_at(y, np.ones(len(y)), 0.5)


@dataclass(frozen=True)
class Evaluation:
    """What a probe reaches on test tokens, intervals over prompts."""

    auroc: Estimate
    f1: Estimate
    f1_always_copy: float
    prevalence: float
    n_tokens: int
    n_prompts: int


def evaluate(
    y: np.ndarray, score: np.ndarray, groups: np.ndarray, tau: float, *, seed: int = 0
) -> Evaluation:
    """AUROC and F1 at τ with intervals over prompts.

    Raises:
        SwitchSDError: one class only, or fewer than two prompts.
    """
    require_both_classes(y)
    prompt, n = prompt_numbers(groups)
    return Evaluation(
        auroc=interval(auroc(prompt, y, score), n, seed=seed),
        f1=interval(f1_of_prompts(prompt, y, score, tau), n, seed=seed),
        f1_always_copy=f1_always_copy(y),
        prevalence=float(np.mean(y)),
        n_tokens=len(y),
        n_prompts=n,
    )


def best_f1_threshold(
    y: Shaped[np.ndarray, " n"], p: Float[np.ndarray, " n"]
) -> tuple[float, float]:
    """The score τ with the greatest F1 of "score ≥ τ", and that F1; the highest τ among equals.

    Exact over all distinct scores, O(n log n). Raises `OneClassError` without any copy token.
    """
    true, false, thresholds = _counts_from_top(y, p)
    if true[-1] == 0:
        raise OneClassError.of(np.asarray(y).tolist())
    f1 = 2 * true / (true + false + true[-1])
    best = int(np.argmax(f1))
    return float(thresholds[best]), float(f1[best])


def _counts_from_top(
    y: Shaped[np.ndarray, " n"], scores: Float[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """True and false positives at "score ≥ threshold", for every distinct score, highest first."""
    y, scores = np.asarray(y).astype(bool), np.asarray(scores)
    if y.shape != scores.shape or y.ndim != 1:
        raise SwitchSDError(f"labels {y.shape} and scores {scores.shape} do not fit together")
    if len(y) == 0:
        raise OneClassError.of(np.asarray(y).tolist())
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
