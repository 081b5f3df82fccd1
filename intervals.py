"""Figures with intervals over prompts and, where something was drawn at random, over draws.

A figure is a function of how often each prompt counts. A resample is then a vector of counts, and
figures of the same prompts are compared on the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from .errors import OneClassError, SwitchSDError

Counts = Int[np.ndarray, " prompt"]

Figure = Callable[[Counts], float]
"""How often each prompt counts → the figure; NaN where it does not exist."""


def mean_figure(
    prompt: Int[np.ndarray, " token"],
    values: Shaped[np.ndarray, " token"],
    n_prompts: int,
) -> Figure:
    """Mean over tokens.

    Args:
        prompt: number of each token's prompt.
        values: of each token.
        n_prompts: in all, those without a token included.
    """
    total = np.bincount(prompt, weights=values, minlength=n_prompts)
    number = np.bincount(prompt, minlength=n_prompts)

    def figure(counts: Counts) -> float:
        tokens = float(counts @ number)
        return float(counts @ total) / tokens if tokens else float("nan")

    return figure


def auroc_figure(
    prompt: Int[np.ndarray, " token"],
    y: Bool[np.ndarray, " token"],
    scores: Float[np.ndarray, " token"],
    strata: Int[np.ndarray, " token"] | None = None,
) -> Figure:
    """AUROC, ties half; with strata only pairs of tokens of the same stratum count.

    The stratified figure is the share of such pairs, one of either class, that the score orders
    rightly: each stratum weighs as many pairs as it has.

    Args:
        prompt: number of each token's prompt.
        y: class of each token.
        scores: higher for the class `True`.
        strata: stratum of each token; one for all if None.
    """
    stratum = np.zeros(len(y), np.int64) if strata is None else np.asarray(strata, np.int64)
    order = np.lexsort((scores, stratum))
    prompt, y, scores, stratum = (a[order] for a in (prompt, y, scores, stratum))
    fresh = np.append(True, stratum[1:] != stratum[:-1])
    level = np.cumsum(fresh | np.append(True, scores[1:] != scores[:-1])) - 1
    new_level = np.append(True, level[1:] != level[:-1])
    first = np.cumsum(fresh)[new_level] - 1 if len(y) else np.zeros(0, np.int64)

    def figure(counts: Counts) -> float:
        weight = counts[prompt].astype(float)
        true = np.bincount(level, weights=weight * y)
        false = np.bincount(level, weights=weight * ~y)
        of_true, of_false = np.bincount(first, true), np.bincount(first, false)
        below = np.cumsum(false) - false - (np.cumsum(of_false) - of_false)[first]
        pairs = float(of_true @ of_false)
        return float(true @ (below + 0.5 * false)) / pairs if pairs else float("nan")

    return figure if len(y) else (lambda counts: float("nan"))


def minus(first: Figure, second: Figure) -> Figure:
    """The difference, both on the same prompts."""
    return lambda counts: first(counts) - second(counts)


def interval(
    figures: Figure | Sequence[Figure],
    n_prompts: int,
    *,
    n_boot: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Mean over draws, with a percentile interval from resampling prompts and draws.

    Args:
        figures: one, or one a draw.
        n_prompts: to resample.
        n_boot: resamples.
        seed: of the resampling.
        level: of the interval.

    Returns:
        The estimate; NaN throughout where the figure does not exist.

    Raises:
        SwitchSDError: fewer than two prompts.
    """
    draws = list(figures) if isinstance(figures, Sequence) else [figures]
    if n_prompts < 2:
        raise SwitchSDError(
            f"an interval needs at least 2 prompts, got {n_prompts}; use more prompts"
        )
    value = float(np.mean([draw(np.ones(n_prompts, np.int64)) for draw in draws]))
    random = np.random.default_rng(seed)
    found = []
    for _ in range(n_boot):
        counts = random.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts))
        chosen = random.integers(0, len(draws), len(draws)) if len(draws) > 1 else [0]
        found.append(float(np.mean([draws[place](counts) for place in chosen])))
    kept = [figure for figure in found if np.isfinite(figure)]
    if not kept or not np.isfinite(value):
        return Estimate(float("nan"), float("nan"), float("nan"), skipped=n_boot)
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), skipped=n_boot - len(kept))


def columns(name: str, estimate: Estimate) -> dict[str, float]:
    """`name`, `name_low`, `name_high`, as tables have them."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


N_BOOT = 1000


@dataclass(frozen=True)
class Draws:
    """An estimate of many columns and its resampled values.

    Attributes:
        value: on all prompts.
        drawn: on each resample; NaN where a resample holds nothing to average.
    """

    value: Float[np.ndarray, "*column"]
    drawn: Float[np.ndarray, "draw ..."]

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Percentiles of the resampled values."""
        tail = (1 - level) / 2
        low, high = np.nanquantile(self.drawn, [tail, 1 - tail], axis=0)
        return low, high


def resamples(n_prompts: int, *, n_boot: int = N_BOOT, seed: int = 0) -> Int[np.ndarray, "draw p"]:
    """How often each prompt is drawn, with replacement.

    Raises:
        SwitchSDError: fewer than two prompts.
    """
    if n_prompts < 2:
        raise SwitchSDError(
            f"an interval needs at least 2 prompts, got {n_prompts}; use more prompts"
        )
    shares = np.full(n_prompts, 1 / n_prompts)
    return np.random.default_rng(seed).multinomial(n_prompts, shares, size=n_boot)


def pooled_mean(
    sums: Float[np.ndarray, "prompt ..."],
    counts: Shaped[np.ndarray, " prompt"],
    *,
    n_boot: int = N_BOOT,
    seed: int = 0,
) -> Draws:
    """Σ sums / Σ counts over prompts: the mean over all their tokens.

    Args:
        sums: what a prompt's tokens add up to.
        counts: how many tokens that were.
        n_boot: resamples.
        seed: of the resampling; the same seed draws the same prompts.

    Raises:
        SwitchSDError: fewer than two prompts, or no token in any.
    """
    counts = np.asarray(counts, np.float64)
    if not counts.sum():
        raise SwitchSDError("no token to average over in any prompt; use other prompts")
    copies = resamples(len(counts), n_boot=n_boot, seed=seed)
    total = copies @ counts
    total = np.where(total > 0, total, np.nan)
    drawn = np.tensordot(copies, sums, axes=1)
    return Draws(
        sums.sum(0) / counts.sum(), drawn / total.reshape(-1, *(1 for _ in drawn.shape[1:]))
    )


Statistic = Callable[..., float]


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
