"""Means of many columns at once, with intervals from resampling whole prompts.

`probing.metrics.bootstrap` takes one statistic at a time; a study of every head has hundreds of
means, all over the same prompts, so here they are drawn together from each prompt's sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from ..errors import SwitchSDError

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
