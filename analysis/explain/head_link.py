"""Are the heads that carry the probe's logit the induction heads?

Induction scores and attribution stand beside each other, head by head, for the heads below the
probe's site: rank correlation, the overlap of the two top tens, and what the top induction heads
hold against random heads of the same layers. Correlation of two descriptions, no cause: a head can
hold much of the logit and copy nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import hypergeom, rankdata

from ...errors import SwitchSDError
from ...intervals import Draws, Estimate
from .head_sets import matched_random_heads

N_RANDOM = 1000


@dataclass(frozen=True)
class Link:
    """Two measurements of the same heads, each with resampled values.

    Attributes:
        heads: `layer`, `head` of each column.
        score: an induction score.
        share: share of the probe's separation.
    """

    heads: pd.DataFrame
    score: Draws
    share: Draws

    def __post_init__(self) -> None:
        n = len(self.heads)
        if n < 2 or self.score.value.shape != (n,) or self.share.value.shape != (n,):
            raise SwitchSDError(
                f"{n} heads with {len(self.score.value)} scores and {len(self.share.value)} "
                "shares: give both for the same heads, at least 2"
            )

    @property
    def n_layers(self) -> int:
        """Layers these heads are of, from 0 on."""
        return int(self.heads["layer"].max()) + 1

    @property
    def n_heads(self) -> int:
        """Heads of each layer."""
        return int(self.heads["head"].max()) + 1

    def table(self) -> pd.DataFrame:
        """One row a head, highest share first: `score` and `share` with intervals and ranks."""
        low, high = self.score.interval()
        share_low, share_high = self.share.interval()
        table = self.heads.assign(
            score=self.score.value, score_low=low, score_high=high, score_rank=_rank(
                self.score.value), share=self.share.value, share_low=share_low,
            share_high=share_high, share_rank=_rank(self.share.value),
        )  # fmt: skip
        return table.sort_values("share_rank").reset_index(drop=True)

    def rank_correlation(self) -> Estimate:
        """Spearman's ρ; the interval resamples prompts and random repeats, not heads."""
        value = _correlations(self.score.value[None], self.share.value[None])[0]
        return Draws(value, _correlations(self.score.drawn, self.share.drawn)).estimate()

    def overlap(self, k: int = 10) -> dict[str, float]:
        """How many heads are in both top k, against k heads drawn blindly from all.

        Returns:
            `k`, `heads`, `overlap` (of k) with `low` and `high` over resamples, `chance` (k²/n),
            `chance_high` (97.5 % of blind draws have at most this many), `p` (share of blind draws
            with at least as many).
        """
        n = len(self.heads)
        k = _checked(k, n)
        seen = len(set(top(self.score.value, k)) & set(top(self.share.value, k)))
        drawn = np.array(
            [
                len(set(top(score, k)) & set(top(share, k)))
                for score, share in zip(self.score.drawn, self.share.drawn, strict=True)
            ]
        )
        low, high = np.quantile(drawn, [0.025, 0.975])
        blind = hypergeom(n, k, k)
        return {
            "k": k, "heads": n, "overlap": seen, "low": float(low), "high": float(high),
            "chance": k * k / n, "chance_high": float(blind.ppf(0.975)),
            "p": float(blind.sf(seen - 1)),
        }  # fmt: skip

    def held(self, k: int = 10, *, n_random: int = N_RANDOM, seed: int = 0) -> dict[str, float]:
        """Share of the separation that the top-k induction heads hold, against random heads.

        Random heads are none of these, and come from the same layers, as many from each
        (`head_sets.matched_random_heads`).

        Returns:
            `k`, `share` with `low` and `high` (over prompts, the k heads fixed), `random` (mean of
            the draws), `random_low`, `random_high` (95 % of the draws), `p` (share of draws that
            hold at least as much), `draws`.
        """
        chosen = top(self.score.value, _checked(k, len(self.heads)))
        share = float(self.share.value[chosen].sum())
        low, high = np.nanquantile(self.share.drawn[:, chosen].sum(1), [0.025, 0.975])
        keys = list(self.heads[["layer", "head"]].itertuples(index=False, name=None))
        place = {key: at for at, key in enumerate(keys)}
        sets = matched_random_heads(
            [keys[at] for at in chosen], self.n_layers, self.n_heads, draws=n_random, seed=seed
        )
        drawn = np.array([self.share.value[[place[key] for key in each]].sum() for each in sets])
        return {
            "k": len(chosen), "share": share, "low": float(low), "high": float(high),
            "random": float(drawn.mean()),
            "random_low": float(np.quantile(drawn, 0.025)),
            "random_high": float(np.quantile(drawn, 0.975)),
            "p": float((1 + (drawn >= share - 1e-12).sum()) / (1 + len(drawn))),
            "draws": len(drawn),
        }  # fmt: skip


def top(values: Float[np.ndarray, " head"], k: int) -> Int[np.ndarray, " k"]:
    """Columns of the k greatest; the earlier one among equals."""
    return np.argsort(-values, kind="stable")[:k]


def _checked(k: int, n: int) -> int:
    if not 1 <= k <= n:
        raise SwitchSDError(f"k = {k}: there are {n} heads below the probe's site; take 1 to {n}")
    return k


def _rank(values: Float[np.ndarray, " head"]) -> Int[np.ndarray, " head"]:
    return rankdata(-values, method="ordinal").astype(int)


def _correlations(
    first: Float[np.ndarray, "draw head"], second: Float[np.ndarray, "draw head"]
) -> Float[np.ndarray, " draw"]:
    a, b = rankdata(first, axis=1), rankdata(second, axis=1)
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    scale = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return (a * b).sum(1) / np.where(scale == 0, np.nan, scale)
