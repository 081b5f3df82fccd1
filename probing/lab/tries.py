"""What else was tried for a better probe, all measured in the same way.

Each attempt is trained on the training corpus only and answers two questions: the paper's label at
its own offset, and (read where the live gate reads) whether a copy on offer would be accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...errors import OneClassError
from ...progress import Progress, silent
from ..corpora.token_table import GATE_LAG, given_match, target_known, target_labels
from ..training.fitting import Fitted, fit
from ..training.metrics import best_f1_threshold, f1_at, roc_auc
from ..training.probing_set import ProbingSet
from .evaluation import pool, score_set
from .studies import prompts_up_to


@dataclass(frozen=True)
class Attempt:
    """One way to train a probe.

    Attributes:
        name: in the table.
        sites: read side by side; a decoder can serve one only.
        offset: label offset.
        target: one of `token_table.TARGETS`.
        family: of probes.
        tokens: training tokens; all if None.
    """

    name: str
    sites: tuple[str, ...]
    offset: int = GATE_LAG
    target: str = "copied"
    family: str = "logistic"
    tokens: int | None = None


def default_attempts(site: str, candidates: Sequence[str]) -> list[Attempt]:
    """What the lab tries: less data, other layers, several at once, other targets and families."""
    others = [name for name in candidates if name != site]
    four, gate = (site, *others[:3]), "accepted_given_match"
    return [
        Attempt("paper's label", (site,)),
        Attempt("10,000 training tokens", (site,), tokens=10_000),
        *(Attempt(f"site {name}", (name,)) for name in others),
        Attempt("two sites side by side", (site, *others[:1])),
        Attempt("four sites side by side", four),
        Attempt("MLP", (site,), family="mlp"),
        Attempt("MLP on four sites", four, family="mlp"),
        Attempt("label offset 1", (site,), offset=1),
        Attempt("label offset 0", (site,), offset=0),
        Attempt("accepted ≥ 3", (site,), target="accepted"),
        Attempt("accepted ≥ 3, four sites", four, target="accepted"),
        Attempt("accepted ≥ 3 given a match", (site,), target=gate),
        Attempt("accepted ≥ 3 given a match, four sites", four, target=gate),
        Attempt("accepted ≥ 3 given a match, MLP", (site,), target=gate, family="mlp"),
    ]


def tries_study(
    data: ProbingSet,
    evaluation: Mapping[str, ProbingSet],
    attempts: Sequence[Attempt],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Train every attempt and measure it on the evaluation sets together.

    τ is the validation threshold with the greatest F1 on the paper's label, also where another
    target was trained on.

    Returns:
        attempt, sites, offset, target, probe, n_train, setting, tau, valid_auroc (its own target),
        auroc and f1 (paper's label at its offset, evaluation sets together), f1_without_loops,
        auroc_without_loops, auroc_given_match, auroc_given_match_without_loops.
    """
    rows = []
    for done, attempt in enumerate(attempts):
        progress("tries", done, len(attempts))
        fitted = _fit(data, attempt, seed)
        valid = data.rows("valid")
        on_valid = score_set(data, fitted.probe, list(attempt.sites), valid, lag=attempt.offset)
        tau, _ = best_f1_threshold(on_valid.y, on_valid.score)
        scored = pool(
            [
                score_set(
                    place, fitted.probe, list(attempt.sites), place.rows("test"),
                    lag=attempt.offset,
                )
                for place in evaluation.values()
            ]
        )  # fmt: skip
        apart = scored.without_loops()
        match = pd.concat([_match(place, fitted, attempt) for place in evaluation.values()])
        outside = match[~match["in_loop"]]
        rows.append(
            {
                "attempt": attempt.name,
                "sites": ", ".join(attempt.sites),
                "offset": attempt.offset,
                "target": attempt.target,
                "probe": attempt.family,
                "n_train": fitted.n_train,
                "setting": fitted.setting,
                "tau": tau,
                "valid_auroc": fitted.valid_auroc,
                "auroc": roc_auc(scored.y, scored.score),
                "auroc_without_loops": _auroc(apart.y, apart.score),
                "f1": f1_at(scored.y, scored.score, tau),
                "f1_without_loops": f1_at(apart.y, apart.score, tau) if len(apart.y) else np.nan,
                "auroc_given_match": _auroc(match["y"], match["logit"]),
                "auroc_given_match_without_loops": _auroc(outside["y"], outside["logit"]),
            }
        )
    progress("tries", len(attempts), len(attempts))
    return pd.DataFrame(rows)


def _fit(data: ProbingSet, attempt: Attempt, seed: int) -> Fitted:
    train, valid = data.rows("train"), data.rows("valid")
    if attempt.tokens is not None:
        train = prompts_up_to(data, min(attempt.tokens, len(train)), seed=seed)
    y, keep = target_labels(data.tokens, attempt.target), target_known(data.tokens, attempt.target)
    train, valid = train[keep[train]], valid[keep[valid]]
    on_valid = data.activations(attempt.sites, valid, lag=attempt.offset)
    return fit(
        data.activations(attempt.sites, train, lag=attempt.offset),
        y[train],
        data.groups[train],
        (on_valid, y[valid]),
        family=attempt.family,
        seed=seed,
    )


def _match(data: ProbingSet, fitted: Fitted, attempt: Attempt) -> pd.DataFrame:
    rows = np.flatnonzero(given_match(data.tokens) & (data.part == "test"))
    return pd.DataFrame(
        {
            "y": target_labels(data.tokens, "accepted")[rows],
            "logit": fitted.probe.logit(data.activations(attempt.sites, rows, lag=GATE_LAG)),
            "in_loop": data.tokens["in_loop"].to_numpy()[rows],
        }
    )


def _auroc(y: np.ndarray | pd.Series, score: np.ndarray | pd.Series) -> float:
    try:
        return roc_auc(np.asarray(y), np.asarray(score))
    except OneClassError:
        return float("nan")
