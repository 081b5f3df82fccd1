"""The time that the rest of a text takes under a policy, from every position of a trace on.

A trace knows what every step would give everywhere, so this is known, not estimated. What a draft
costs depends on the tokens it has to catch up with; only the next draft's does, so the time left is
kept without the next draft's own, and that is added for the tokens the draft has then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ...data.context_index import SPAN
from ...decoding.drafters.copy import RecentCopier
from ..cost.profile import LatencyProfile
from ..traces.columns import GAMMA
from ..traces.trace import CounterfactualTrace
from .paths import TracedDraft, copy_drafts, cut_chain, neural_drafts, nothing
from .times import kept_tokens


@dataclass(frozen=True)
class Steps:
    """What each step would give at each row; step 0 is one token, then copies, then drafts.

    Attributes:
        trace: the rows.
        copies: number of the copies, D = 1 … copies.
        gammas: depth of each draft, as the gate asks for it.
        ahead: the row at which the next step begins; the number of rows at a text's end.
        ms: time without drafting.
        depth: of the neural draft; 0: none.
        keeps: tokens in the draft's cache afterwards.
        drafting: [depth, pending] ms.
    """

    trace: CounterfactualTrace
    copies: int
    gammas: tuple[int, ...]
    ahead: Int[np.ndarray, "step row"]
    ms: Float[np.ndarray, "step row"]
    depth: Int[np.ndarray, "step row"]
    keeps: Int[np.ndarray, "step row"]
    drafting: Float[np.ndarray, "depth pending"]

    @classmethod
    def of(
        cls, trace: CounterfactualTrace, profile: LatencyProfile, kind: str | None, n: int, W: int
    ) -> Steps:
        """Lay copies of every D and chains of every γ, or one tree, over a trace.

        Raises:
            SwitchSDError: a draft that was not traced, or costs the profile lacks.
        """
        profile.require(drafts=[kind] if kind else [], lookup=True, gate=True)
        drafted = [nothing(trace)]
        drafted += [copy_drafts(trace, RecentCopier(W, D, n))[1] for D in range(1, SPAN + 1)]
        depth = [np.zeros(len(trace), dtype=np.int64)] * len(drafted)
        keeps = [trace.committed] * len(drafted)
        pending = np.arange(int(np.max(trace.committed - trace.n_prompt)) + 3)
        table, gammas = np.zeros((1, len(pending))), tuple[int, ...]()
        if kind is not None:
            most = TracedDraft(kind, GAMMA)
            whole = neural_drafts(trace, most)
            gammas = tuple(range(1, GAMMA + 1)) if most.tree is None else (most.depth,)
            for gamma in gammas:
                cut = np.full(len(trace), gamma)
                draft = cut_chain(whole, cut) if most.tree is None else whole
                drafted.append(draft)
                depth.append(draft.depth)
                keeps.append(kept_tokens(trace, TracedDraft(kind, gamma), draft))
            table = profile.draft(kind, np.arange(most.depth + 1)[:, None], pending)
        fixed = profile.overhead_ms + (profile.lookup_ms or 0.0) + (profile.gate_ms or 0.0)
        proposed = np.stack([each.proposed for each in drafted])
        emitted = np.stack([each.accepted for each in drafted]) + 1
        ends = np.arange(len(trace)) + emitted
        return cls(
            trace,
            SPAN,
            gammas,
            np.where(emitted >= trace.remaining, len(trace), ends),
            profile.verify(proposed + 1, trace.committed - 1) + fixed,
            np.stack(depth),
            np.stack(keeps),
            table,
        )

    def catch_up(
        self, first: Int[np.ndarray, "*any"], depth: Int[np.ndarray, " row"], cached: Any
    ) -> Float[np.ndarray, "*any"]:
        """What the next draft costs that begins at rows `first` (the end: nothing)."""
        at = np.minimum(first, len(self.trace) - 1)
        pending = np.clip(self.trace.committed[at] - cached, 0, self.drafting.shape[1] - 1)
        return np.where(first < len(self.trace), self.drafting[depth[at], pending], 0.0)


@dataclass(frozen=True)
class Values:
    """A policy over the rows.

    Attributes:
        left: ms from each row to the end of its text but for the next draft's own; one more row.
        first: row of the next draft from each row on; one more row.
        depth: of the policy's draft at each row.
        rows: where its steps begin.
        cached: tokens in the draft's cache there.
        ms: of the whole run.
    """

    left: Float[np.ndarray, " row_and_end"]
    first: Int[np.ndarray, " row_and_end"]
    depth: Int[np.ndarray, " row"]
    rows: Int[np.ndarray, " visited"]
    cached: Int[np.ndarray, " visited"]
    ms: float


def run_policy(steps: Steps, choice: Int[np.ndarray, " row"]) -> Values:
    """The time left from every row on, where row r takes step `choice[r]`."""
    size, every = len(choice), np.arange(len(choice))
    ahead, ms, depth, keeps = (
        part[choice, every] for part in (steps.ahead, steps.ms, steps.depth, steps.keeps)
    )
    next_row, cost, deep, kept = ahead.tolist(), ms.tolist(), depth.tolist(), keeps.tolist()
    committed, table = steps.trace.committed.tolist(), steps.drafting.tolist()
    left, first = [0.0] * (size + 1), [size] * (size + 1)
    for row in range(size - 1, -1, -1):
        then = next_row[row]
        left[row], first[row] = cost[row] + left[then], first[then]
        if deep[row]:
            later = first[then]
            if later < size:
                left[row] += table[deep[later]][committed[later] - kept[row]]
            first[row] = row
    rows, cached = [], []
    total = 0.0
    for start, n_prompt in zip(
        steps.trace.starts.tolist(), steps.trace.n_prompt[steps.trace.starts].tolist(), strict=True
    ):
        row, held = start, n_prompt - 1
        total += left[row]
        if first[row] < size:
            total += table[deep[first[row]]][committed[first[row]] - held]
        while row < size:
            rows.append(row)
            cached.append(held)
            held = kept[row] if deep[row] else held
            row = next_row[row]
    return Values(np.array(left), np.array(first), depth, np.array(rows), np.array(cached), total)


def time_left(
    steps: Steps, values: Values, rows: Int[np.ndarray, " some"], cached: Int[np.ndarray, " some"]
) -> Float[np.ndarray, "step some"]:
    """What taking each step at these rows, and then going on with the policy, takes."""
    ahead, depth = steps.ahead[:, rows], steps.depth[:, rows]
    drafts = depth > 0
    after = np.where(drafts, steps.keeps[:, rows], cached)
    pending = np.clip(steps.trace.committed[rows] - cached, 0, steps.drafting.shape[1] - 1)
    own = np.where(drafts, steps.drafting[depth, pending], 0.0)
    later = steps.catch_up(values.first[ahead], values.depth, after)
    return steps.ms[:, rows] + own + values.left[ahead] + later
