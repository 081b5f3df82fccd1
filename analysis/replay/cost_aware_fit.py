"""Fit cost-aware: which step leaves the least expected time, for each cell of score and match.

Under a policy the time that the rest of a traced text takes is known from every row on. For each
cell and each step (one token, a copy of each D, a draft of each γ) the mean over the policy's steps
there is what taking it and then going on would cost; the least make a better policy, and so on
until none is better: policy iteration on what the gate can see. Tokens are worth what it takes to
make one in their own surroundings, and a draft pays for what it has to catch up with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from sklearn.tree import DecisionTreeRegressor

from ...decoding.drafters.copy import RecentCopier
from ...decoding.gates.cost_aware import CostAwareFit, cells
from ...errors import SwitchSDError
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .paths import copy_drafts
from .plan import columns
from .time_left import Steps, run_policy, time_left

MATCHES = (1, 2, 3, 4, 5, 7, 10, 15, 25)
"""Edges of the match length's bins; the first bin has no candidate."""

_ROUNDS = 12
_ROWS = 30  # in a bin of the score
_START_D, _START_GAMMA = 10, 3  # of the policy that is improved first


@dataclass(frozen=True)
class Shape:
    """What a fit is chosen among.

    Attributes:
        n: tokens that have to match.
        W: copy candidates.
        bins: of the score, at most.
        prior: a cell is drawn to the mean of its match length as if by so many steps.
    """

    n: int = 3
    W: int = 1
    bins: int = 8
    prior: float = 40.0


def fit_cost_aware(
    trace: CounterfactualTrace,
    profile: LatencyProfile,
    *,
    kind: str | None = "eagle3",
    shape: Shape | None = None,
) -> CostAwareFit:
    """Fit the gate on a trace of training prompts.

    Args:
        trace: training prompts; what it is measured on later must not be among them.
        profile: what steps cost where it will run.
        kind: of the neural draft: eagle3, sps or a traced tree; None: one token there.
        shape: bins and candidates.

    Raises:
        SwitchSDError: no probe scores, a draft that was not traced, another model's profile, or
            costs it lacks.
    """
    shape = shape or Shape()
    if np.isnan(trace.score).all():
        raise SwitchSDError("the trace has no probe scores: trace with the probe")
    profile.check(trace.fingerprint)
    steps = Steps.of(trace, profile, kind, shape.n, shape.W)
    offered, _ = copy_drafts(trace, RecentCopier(shape.W, 1, shape.n))
    seen = columns(trace, offered)
    some = offered.some
    scores = _edges(trace.score[some], offered.accepted[some, 0], shape.bins)
    size = (len(MATCHES) + 1, len(scores) + 1)
    match, score = cells(scores, MATCHES, seen)
    cell = match * size[1] + score
    chosen = np.full(size, _START_D)
    chosen[0] = steps.copies + min(_START_GAMMA, len(steps.gammas))
    if not steps.gammas:
        chosen[0] = 0
    found = _Round(chosen, np.zeros((len(steps.ms), *size)), np.zeros(size, dtype=np.int64), np.inf)
    saved = found.saved
    for _ in range(_ROUNDS):
        values = run_policy(steps, chosen.ravel()[cell])
        if values.ms >= found.ms:
            break
        at = cell[values.rows]
        found = _Round(
            chosen, saved, np.bincount(at, minlength=chosen.size).reshape(size), values.ms
        )
        left = time_left(steps, values, values.rows, values.cached)
        saved = _means(left[0] - left, at, size, shape.prior)
        chosen = _best(saved, steps.copies)
    copies = (found.chosen >= 1) & (found.chosen <= steps.copies)
    drafts = np.concatenate([found.saved[:1], found.saved[steps.copies + 1 :]]).argmax(axis=0)
    gammas = np.array([0, *steps.gammas])
    depths = gammas[np.maximum(found.chosen - steps.copies, 0)]
    tokens = int(trace.remaining[trace.starts].sum())
    return CostAwareFit(
        trace.fingerprint,
        trace.digests.get("probe") or "",
        kind,
        trace.digest(kind) if kind else None,
        shape.n,
        shape.W,
        scores,
        MATCHES,
        _table(np.where(copies, found.chosen, 0)),
        _table(np.where(copies, gammas[drafts], depths)),
        {
            "prompts": len(trace.prompts),
            "tokens": tokens,
            "tokens_per_ms": tokens / found.ms,
            "steps": found.steps.tolist(),
            "prior": shape.prior,
            "machine": {
                name: value
                for name, value in profile.about.items()
                if isinstance(value, (str, int, float))
            },
        },
    )


def _table(values: Int[np.ndarray, "match score"]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


@dataclass(frozen=True)
class _Round:
    """A policy of the iteration.

    Attributes:
        chosen: step of each cell.
        saved: what each step was thought to save there against one token, which chose it.
        steps: how many of its steps begin in each cell.
        ms: of the whole trace.
    """

    chosen: Int[np.ndarray, "match score"]
    saved: Float[np.ndarray, "step match score"]
    steps: Int[np.ndarray, "match score"]
    ms: float


def _edges(
    score: Float[np.ndarray, " row"], accepted: Int[np.ndarray, " row"], bins: int
) -> tuple[float, ...]:
    """Edges of at most so many bins of the score, where the accepted length of a copy changes most.

    Those of a regression tree on rows with a candidate; each bin has at least `_ROWS` of them.
    """
    known = ~np.isnan(score)
    if bins < 2 or known.sum() < 2 * _ROWS:
        return ()
    tree = DecisionTreeRegressor(max_leaf_nodes=bins, min_samples_leaf=_ROWS)
    found = tree.fit(score[known, None], accepted[known]).tree_
    return tuple(np.unique(found.threshold[found.feature >= 0]).tolist())


def _means(
    saved: Float[np.ndarray, "step visited"],
    cell: Int[np.ndarray, " visited"],
    size: tuple[int, int],
    prior: float,
) -> Float[np.ndarray, "step match score"]:
    """Mean of each cell, drawn to that of its match length, and this to that of all matches."""
    seen = np.bincount(cell, minlength=size[0] * size[1]).reshape(size)
    sums = np.stack([np.bincount(cell, row, minlength=seen.size).reshape(size) for row in saved])
    some = sums[:, 1:].sum(axis=(1, 2)) / max(seen[1:].sum(), 1)
    none = sums[:, 0].sum(axis=1) / max(seen[0].sum(), 1)
    every = np.stack([none, *[some] * (size[0] - 1)], axis=1)  # [step, match]
    by_match = (sums.sum(axis=2) + prior * every) / (seen.sum(axis=1) + prior)
    return (sums + prior * by_match[:, :, None]) / (seen + prior)


def _best(
    saved: Float[np.ndarray, "step match score"], copies: int
) -> Int[np.ndarray, "match score"]:
    """The step that saves most in each cell; no copy where there is no candidate."""
    possible = saved.copy()
    possible[1 : copies + 1, 0] = -np.inf
    return possible.argmax(axis=0)
