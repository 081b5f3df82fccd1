"""Statistics with intervals over prompts, resampled whole because their tokens hang together.

A statistic is a function of how often each prompt counts. A resample is then a vector of counts,
drawn in one place (`resamples`), and what is computed on the same counts is paired: differences,
ratios and correlations of statistics are statistics themselves.

    >>> speed = ratio(np.array([90.0, 60.0]), np.array([3.0, 1.0]))  # tokens, s of 2 prompts
    >>> float(speed(np.array([1, 1]))), float(speed(np.array([0, 2])))
    (37.5, 60.0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

from .errors import SwitchSDError

Counts = Int[np.ndarray, "*draw prompt"]

Statistic = Callable[[Counts], Float[np.ndarray, "..."]]
"""How often each prompt counts → a number, or one a column; NaN where it does not exist."""

N_BOOT = 1000
"""Resamples of what only adds up; statistics that sort take fewer."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval.

    Attributes:
        value: on all prompts.
        low, high: percentiles over resamples.
        skipped: resamples on which it does not exist; they are not in the interval.
    """

    value: float
    low: float
    high: float
    skipped: int = 0

    def columns(self, name: str) -> dict[str, float]:
        """`name`, `name_low`, `name_high`, as tables have them."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


NOTHING = Estimate(float("nan"), float("nan"), float("nan"))
"""What cannot be measured."""


@dataclass(frozen=True)
class Draws:
    """A statistic, a number or many columns, and its resampled values.

    Attributes:
        value: on all prompts.
        drawn: on each resample; NaN where it does not exist.
    """

    value: Float[np.ndarray, "*column"]
    drawn: Float[np.ndarray, "draw ..."]

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Percentiles of the resampled values, of each column."""
        tail = (1 - level) / 2
        low, high = np.nanquantile(self.drawn, [tail, 1 - tail], axis=0)
        return low, high

    def shares(self) -> Draws:
        """Each column's share of the sum over columns, on all prompts and on each resample."""

        def of(values: Float[np.ndarray, "... column"]) -> Float[np.ndarray, "... column"]:
            whole = values.sum(-1, keepdims=True)
            return values / np.where(whole == 0, np.nan, whole)

        return Draws(of(self.value), of(self.drawn))

    def estimate(self, level: float = 0.95) -> Estimate:
        """Of one column; NaN throughout where it does not exist."""
        known = self.drawn[~np.isnan(self.drawn)]
        if not len(known) or np.isnan(self.value):
            return replace(NOTHING, skipped=len(self.drawn))
        # a ratio over nothing is infinite, and two such have no mean
        ends = [(1 - level) / 2, (1 + level) / 2]
        whole = np.isfinite(known).all()
        low, high = np.quantile(known, ends, method="linear" if whole else "nearest")
        return Estimate(float(self.value), float(low), float(high), len(self.drawn) - len(known))


def resamples(n_prompts: int, *, n_boot: int = N_BOOT, seed: int = 0) -> Int[np.ndarray, "draw p"]:
    """How often each prompt is drawn, with replacement."""
    shares = np.full(n_prompts, 1 / n_prompts)
    return np.random.default_rng(seed).multinomial(n_prompts, shares, size=n_boot)


def draw(
    statistic: Statistic, n_prompts: int, *, n_boot: int = N_BOOT, seed: int = 0, least: int = 2
) -> Draws:
    """A statistic on all prompts and on resampled ones; the same seed draws the same prompts.

    Args:
        statistic: of counts.
        n_prompts: to resample.
        n_boot: resamples.
        seed: of the resampling.
        least: prompts that there have to be; one prompt alone is always drawn.

    Raises:
        SwitchSDError: fewer than `least` prompts.
    """
    _enough(n_prompts, least)
    copies = resamples(n_prompts, n_boot=n_boot, seed=seed)
    return Draws(_whole(statistic, n_prompts), statistic(copies))


def interval(
    statistics: Statistic | Sequence[Statistic],
    n_prompts: int,
    *,
    n_boot: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """A number with its percentile interval over prompts and, where it was repeated, repeats.

    Args:
        statistics: one, or one a random repeat: their mean counts, and both prompts and repeats
            are resampled.
        n_prompts: to resample.
        n_boot: resamples.
        seed: of the resampling.
        level: of the interval.

    Returns:
        The estimate; NaN throughout where the statistic does not exist.

    Raises:
        SwitchSDError: fewer than two prompts.
    """
    if not isinstance(statistics, Sequence):
        return draw(statistics, n_prompts, n_boot=n_boot, seed=seed).estimate(level)
    if len(statistics) == 1:
        return interval(statistics[0], n_prompts, n_boot=n_boot, seed=seed, level=level)
    _enough(n_prompts, 2)
    random, number = np.random.default_rng(seed), len(statistics)
    shares = np.full(n_prompts, 1 / n_prompts)
    drawn = [
        (random.multinomial(n_prompts, shares), random.integers(0, number, number))
        for _ in range(n_boot)
    ]
    copies, repeats = (np.stack(part) for part in zip(*drawn, strict=True))
    every = np.stack([statistic(copies) for statistic in statistics], axis=1)  # [draw, repeat]
    value = np.mean([_whole(statistic, n_prompts) for statistic in statistics])
    return Draws(value, np.take_along_axis(every, repeats, axis=1).mean(axis=1)).estimate(level)


def ratio(top: ArrayLike, bottom: ArrayLike) -> Statistic:
    """Σ top / Σ bottom over prompts: a mean over all their tokens, a speed, a share.

    Args:
        top: [prompt, …] what a prompt's tokens (or steps) add up to.
        bottom: [prompt] what that is divided by; over nothing it is infinite, 0 / 0 is NaN.
    """
    over, under = np.asarray(top, np.float64), np.asarray(bottom, np.float64)

    def of(counts: Counts) -> Float[np.ndarray, ...]:
        above, below = np.tensordot(counts, over, axes=1), np.asarray(counts @ under)
        with np.errstate(divide="ignore", invalid="ignore"):
            return above / below.reshape(below.shape + (1,) * (over.ndim - 1))

    return of


def mean(
    prompt: Int[np.ndarray, " token"], values: Shaped[np.ndarray, " token"], n_prompts: int
) -> Statistic:
    """Mean over tokens.

    Args:
        prompt: number of each token's prompt.
        values: of each token.
        n_prompts: in all, those without a token included.
    """
    total = np.bincount(prompt, weights=values, minlength=n_prompts)
    return ratio(total, np.bincount(prompt, minlength=n_prompts))


def auroc(
    prompt: Int[np.ndarray, " token"],
    y: Bool[np.ndarray, " token"],
    scores: Float[np.ndarray, " token"],
    strata: Int[np.ndarray, " token"] | None = None,
) -> Statistic:
    """AUROC, ties half; with strata only pairs of tokens of the same stratum count.

    The stratified one is the share of such pairs, one of either class, that the score orders
    rightly: each stratum weighs as many pairs as it has.

    Args:
        prompt: number of each token's prompt.
        y: class of each token.
        scores: higher for the class `True`.
        strata: stratum of each token; one for all if None.
    """
    y = np.asarray(y).astype(bool)
    stratum = np.zeros(len(y), np.int64) if strata is None else np.asarray(strata, np.int64)
    order = np.lexsort((scores, stratum))
    prompt, y, scores, stratum = (a[order] for a in (prompt, y, scores, stratum))
    fresh = np.append(True, stratum[1:] != stratum[:-1])
    level = np.cumsum(fresh | np.append(True, scores[1:] != scores[:-1])) - 1
    new_level = np.append(True, level[1:] != level[:-1])
    first = np.cumsum(fresh)[new_level] - 1 if len(y) else np.zeros(0, np.int64)

    def of(counts: Int[np.ndarray, " prompt"]) -> float:
        weight = counts[prompt].astype(float)
        true = np.bincount(level, weights=weight * y)
        false = np.bincount(level, weights=weight * ~y)
        of_true, of_false = np.bincount(first, true), np.bincount(first, false)
        below = np.cumsum(false) - false - (np.cumsum(of_false) - of_false)[first]
        pairs = float(of_true @ of_false)
        return float(true @ (below + 0.5 * false)) / pairs if pairs else float("nan")

    return each(of if len(y) else lambda counts: float("nan"))


def minus(first: Statistic, second: Statistic) -> Statistic:
    """The difference, both on the same prompts."""
    return combined(np.subtract, first, second)


def combined(how: Callable[..., Float[np.ndarray, "*any"]], *statistics: Statistic) -> Statistic:
    """`how(first, second, …)`, all on the same prompts."""

    def of(counts: Counts) -> Float[np.ndarray, ...]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return how(*(statistic(counts) for statistic in statistics))

    return of


def each(
    one: Callable[[Int[np.ndarray, " prompt"]], float | Float[np.ndarray, " column"]],
) -> Statistic:
    """A statistic from a function of one vector of counts."""
    return lambda counts: np.apply_along_axis(one, -1, counts)


def prompt_numbers(prompts: ArrayLike) -> tuple[Int[np.ndarray, " token"], int]:
    """Each token's prompt as a number from 0 on (in order of the names), and how many there are."""
    names, numbers = np.unique(np.asarray(prompts), return_inverse=True)
    return numbers, len(names)


def _whole(statistic: Statistic, n_prompts: int) -> Float[np.ndarray, "*column"]:
    return np.asarray(statistic(np.ones(n_prompts, np.int64)))


def _enough(n_prompts: int, least: int) -> None:
    if n_prompts < least:
        raise SwitchSDError(
            f"an interval needs at least {least} prompts, got {n_prompts}; use more prompts"
        )
