"""A probe's scores on a set: overall, per family, per τ, with and without loops.

The question is the paper's label at the probe's own offset; what the gate needs besides is in
`match_study`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...intervals import auroc, interval, prompt_numbers
from ..training.families import Probe
from ..training.metrics import (
    average_precision,
    brier,
    calibration_curve,
    confusion,
    f1_always_copy,
    f1_at,
    f1_of_prompts,
    roc_auc,
)
from ..training.probing_set import ProbingSet

_SCORES = (
    *("prevalence", "loop_share", "f1", "f1_low", "f1_high", "f1_always_copy", "brier"),
    *("auroc", "auroc_low", "auroc_high", "average_precision"),
)


@dataclass(frozen=True)
class Scored:
    """Tokens with the probe's score about them.

    Attributes:
        tokens: rows of the set's token table.
        y: label.
        score: probability.
    """

    tokens: pd.DataFrame
    y: Bool[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]

    @property
    def groups(self) -> np.ndarray:
        """Prompt of each token."""
        return self.tokens["prompt_id"].to_numpy()

    def where(self, keep: Bool[np.ndarray, " row"]) -> Scored:
        """The tokens for which `keep` is true."""
        return Scored(self.tokens[keep], self.y[keep], self.score[keep])

    def without_loops(self) -> Scored:
        """The tokens outside loops."""
        return self.where(~self.tokens["in_loop"].to_numpy())


def score_set(
    data: ProbingSet,
    probe: Probe,
    site: str | list[str],
    rows: Int[np.ndarray, " row"],
    *,
    lag: int,
) -> Scored:
    """Score tokens by the activations `lag` positions before each, on the paper's label."""
    tokens = data.tokens.iloc[rows]
    return Scored(
        tokens,
        tokens["copied"].to_numpy(),
        probe.score(data.activations(site, rows, lag=lag)),
    )


def pool(parts: list[Scored]) -> Scored:
    """Several sets as one."""
    return Scored(
        pd.concat([part.tokens for part in parts], ignore_index=True),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.score for part in parts]),
    )


def scores(scored: Scored, tau: float, *, seed: int = 0) -> dict[str, float]:
    """AUROC and F1 with intervals over prompts, average precision, Brier score, prevalence.

    AUROC and its interval are NaN where all tokens have one label, and everything but the counts
    where fewer than two prompts are left (a set that is all loops, without them).
    """
    y, score = scored.y, scored.score
    prompt, n_prompts = prompt_numbers(scored.groups)
    if n_prompts < 2:
        return {"n_tokens": len(y), "n_prompts": n_prompts} | dict.fromkeys(_SCORES, np.nan)
    one_class = len(np.unique(y)) < 2
    return {
        "n_tokens": len(y),
        "n_prompts": n_prompts,
        "prevalence": float(y.mean()),
        "loop_share": float(scored.tokens["in_loop"].mean()),
        **interval(f1_of_prompts(prompt, y, score, tau), n_prompts, seed=seed).columns("f1"),
        "f1_always_copy": f1_always_copy(y),
        "brier": brier(y, score),
        **interval(auroc(prompt, y, score), n_prompts, seed=seed).columns("auroc"),
        "average_precision": np.nan if one_class else average_precision(y, score),
    }


def family_table(scored: Scored, tau: float) -> pd.DataFrame:
    """family, n_tokens, n_prompts, prevalence, loop_share, f1, f1_always_copy, auroc.

    AUROC is NaN for a family whose test tokens all have one label.
    """
    rows = []
    for family in sorted(scored.tokens["family"].unique()):
        part = scored.where((scored.tokens["family"] == family).to_numpy())
        one_class = len(np.unique(part.y)) < 2
        rows.append(
            {
                "family": family,
                "n_tokens": len(part.y),
                "n_prompts": len(np.unique(part.groups)),
                "prevalence": float(part.y.mean()),
                "loop_share": float(part.tokens["in_loop"].mean()),
                "f1": f1_at(part.y, part.score, tau),
                "f1_always_copy": f1_always_copy(part.y),
                "auroc": np.nan if one_class else roc_auc(part.y, part.score),
            }
        )
    return pd.DataFrame(rows)


def tau_table(scored: Scored, *, steps: int = 100) -> pd.DataFrame:
    """tau, precision, recall, f1, share_on (of tokens at or above τ), τ = 0, 1/steps, … 1."""
    rows = []
    for tau in np.linspace(0, 1, steps + 1):
        counts = confusion(scored.y, scored.score, float(tau))
        on = counts.true_positive + counts.false_positive
        labelled = counts.true_positive + counts.false_negative
        rows.append(
            {
                "tau": float(tau),
                "precision": counts.true_positive / on if on else np.nan,
                "recall": counts.true_positive / labelled if labelled else np.nan,
                "f1": counts.f1,
                "share_on": on / len(scored.y),
            }
        )
    return pd.DataFrame(rows)


def calibration_table(scored: Scored) -> pd.DataFrame:
    """low, high, n, mean_score, share: what the score says against what is seen."""
    return calibration_curve(scored.y, scored.score)


def score_table(scored: Scored) -> pd.DataFrame:
    """prompt_id, position, label, score, in_loop: what a ROC curve is drawn from."""
    return pd.DataFrame(
        {
            "prompt_id": scored.groups,
            "position": scored.tokens["position"].to_numpy(),
            "label": scored.y,
            "score": scored.score,
            "in_loop": scored.tokens["in_loop"].to_numpy(),
        }
    )
