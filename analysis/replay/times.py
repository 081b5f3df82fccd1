"""The time of every step a policy could take over a trace, under a latency profile.

All but the drafting is known for each row and path. What drafting costs depends on how many tokens
the draft has to take in first: those behind the newest one in its cache. An EAGLE-3 head keeps
nothing of its own drafts; a draft model keeps the drafted tokens that were accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ...decoding.policies import Policy
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .paths import Drafted, TracedDraft, nothing


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a policy's steps.

    Attributes:
        trace: the rows.
        copy: a copy step at each row.
        neural: a neural (or plain) step at each row without its drafting.
        vanilla: a step of plain decoding at each row.
        depth: of the neural draft at each row; 0: none.
        keeps: tokens in the draft's cache after it drafted at a row.
        drafting: [depth, pending] ms of a draft; None without one.
        draft_ms: the same for any pending, for the prompt.
        unseen: 1 where the draft's cache begins with token 1 (EAGLE-3's pairs), else 0.
    """

    trace: CounterfactualTrace
    copy: Float[np.ndarray, " row"]
    neural: Float[np.ndarray, " row"]
    vanilla: Float[np.ndarray, " row"]
    depth: Int[np.ndarray, " row"]
    keeps: Int[np.ndarray, " row"]
    drafting: Float[np.ndarray, "depth pending"]
    draft_ms: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    unseen: int

    @classmethod
    def of(
        cls,
        trace: CounterfactualTrace,
        policy: Policy,
        copy: Drafted,
        neural: Drafted,
        profile: LatencyProfile,
    ) -> StepTimes:
        """Lay a profile over a policy's paths.

        Raises:
            SwitchSDError: costs the profile lacks.
        """
        draft = policy.neural if isinstance(policy.neural, TracedDraft) else None
        profile.require(
            drafts=[draft.kind] if draft is not None else [],
            lookup=policy.copier is not None,
            gate=policy.probe is not None,
        )
        fixed = profile.overhead_ms
        fixed += (profile.lookup_ms or 0.0) if policy.copier is not None else 0.0
        fixed += (profile.gate_ms or 0.0) if policy.probe is not None else 0.0

        def verify(drafted: Drafted) -> Float[np.ndarray, " row"]:
            key = ("verify", id(profile), id(drafted))
            return trace.once(
                key, lambda: _verify(trace, drafted.proposed, profile), profile, drafted
            )

        plain = verify(nothing(trace))
        pending = np.arange(int(np.max(trace.committed - trace.n_prompt)) + 2)
        table = np.zeros((1, len(pending)))
        if draft is not None:
            depths = np.arange(draft.depth + 1)
            table = profile.draft(draft.kind, depths[:, None], pending)
            table[0] = 0.0
        return cls(
            trace,
            verify(copy) + fixed,
            verify(neural) + fixed,
            plain + profile.overhead_ms,
            neural.depth,
            kept_tokens(trace, draft, neural),
            table,
            None if draft is None else lambda d, p: profile.draft(draft.kind, d, p),
            0 if draft is not None and draft.kind == "sps" else 1,
        )

    def of_steps(
        self, rows: Int[np.ndarray, " step"], copies: Bool[np.ndarray, " step"]
    ) -> Float[np.ndarray, " step"]:
        """Milliseconds of each step of a run over the whole trace, in order."""
        ms = np.where(copies, self.copy[rows], self.neural[rows])
        drafts, pending = self._pending(rows, copies)
        ms[drafts] += self.drafting[self.depth[rows[drafts]], pending]
        return ms

    def draft_prefill(
        self, rows: Int[np.ndarray, " step"], copies: Bool[np.ndarray, " step"]
    ) -> Float[np.ndarray, " prompt"]:
        """What taking in the prompt adds to each prompt's first draft."""
        trace, found = self.trace, np.zeros(len(self.trace.prompts))
        drafts = np.flatnonzero(~copies & (self.depth[rows] > 0))
        prompts, first = np.unique(trace.prompt[rows[drafts]], return_index=True)
        if self.draft_ms is not None and len(prompts):
            at = rows[drafts[first]]
            pending = trace.committed[at] - trace.n_prompt[at] + 1
            whole = trace.committed[at] - self.unseen
            depth = self.depth[at]
            found[prompts] = np.maximum(
                self.draft_ms(depth, whole) - self.draft_ms(depth, np.minimum(pending, whole)), 0.0
            )
        return found

    def clock(self) -> Callable[[int, bool], float]:
        """Milliseconds of one step after the other: (row, whether it copies) in the run's order."""
        copy, neural, depth = self.copy.tolist(), self.neural.tolist(), self.depth.tolist()
        prompt, committed = self.trace.prompt.tolist(), self.trace.committed.tolist()
        n_prompt, keeps = self.trace.n_prompt.tolist(), self.keeps.tolist()
        current, cached = -1, 0

        def step(row: int, copied: bool) -> float:
            nonlocal current, cached
            if prompt[row] != current:
                current, cached = prompt[row], n_prompt[row] - 1
            if copied:
                return copy[row]
            if not depth[row]:
                return neural[row]
            pending = committed[row] - cached
            cached = keeps[row]
            return neural[row] + float(self.drafting[depth[row], pending])

        return step

    def _pending(self, rows: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which steps draft neurally, and what each has to take in first."""
        drafts = np.flatnonzero(~copies & (self.depth[rows] > 0))
        at = rows[drafts]
        cached = self.trace.n_prompt[at] - 1
        if len(at):
            same = self.trace.prompt[at[1:]] == self.trace.prompt[at[:-1]]
            cached[1:] = np.where(same, self.keeps[at[:-1]], cached[1:])
        return drafts, self.trace.committed[at] - cached


def kept_tokens(
    trace: CounterfactualTrace, draft: TracedDraft | None, neural: Drafted
) -> Int[np.ndarray, " row"]:
    """Committed tokens in the draft's cache after it drafted at each row."""
    if draft is None or draft.kind != "sps":
        return trace.committed
    # its last drafted token never goes through it
    return trace.committed + np.minimum(neural.accepted, np.maximum(neural.depth - 1, 0))


def _verify(
    trace: CounterfactualTrace, proposed: Int[np.ndarray, " row"], profile: LatencyProfile
) -> Float[np.ndarray, " row"]:
    return profile.verify(proposed + 1, trace.committed - 1)
