"""A policy laid over a trace: what either path would give at every row, and what it would cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from ...decoding.gates.gate import Columns
from ...decoding.policies import Policy
from ...errors import SwitchSDError
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .paths import (
    Candidates,
    Drafted,
    TracedDraft,
    copy_drafts,
    cut_chain,
    cut_copies,
    neural_drafts,
    nothing,
    whole_or_nothing,
)
from .times import StepTimes


@dataclass(frozen=True)
class Plan:
    """Everything a policy's run over a trace depends on.

    Attributes:
        trace: the rows.
        policy: gate and drafters.
        candidates: what its copier offers; None without a copier.
        copy: what a copy would give at every row.
        neural: what the neural path would give.
        times: what steps cost; None without a profile.
    """

    trace: CounterfactualTrace
    policy: Policy
    candidates: Candidates | None
    copy: Drafted
    neural: Drafted
    times: StepTimes | None

    @classmethod
    def of(
        cls, trace: CounterfactualTrace, policy: Policy, profile: LatencyProfile | None = None
    ) -> Plan:
        """Lay a policy over a trace.

        Raises:
            SwitchSDError: a drafter that was not traced, a profile of another model or without the
                policy's costs, a gate that needs a clock and no profile, or one that chooses depths
                and has a memory, or of a tree.
        """
        candidates, copy, neural = None, nothing(trace), nothing(trace)
        if policy.copier is not None:
            candidates, copy = copy_drafts(trace, policy.copier)
        if policy.neural is not None:
            draft = TracedDraft.of(policy.neural, trace)
            policy, neural = replace(policy, neural=draft), neural_drafts(trace, draft)
        if policy.gate.chooses_depth:
            copy, neural = _cut(trace, policy, candidates, copy, neural)
        if profile is None and policy.gate.needs_clock:
            raise SwitchSDError("this gate learns from seconds: replay it with a latency profile")
        times = None if profile is None else StepTimes.of(trace, policy, copy, neural, profile)
        return cls(trace, policy, candidates, copy, neural, times)

    @property
    def columns(self) -> Columns:
        """What the gate may know at every row."""
        return columns(self.trace, self.candidates)

    def emitted(self, copies: Bool[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
        """What a step emits at each row on the path chosen there."""
        accepted = np.where(copies, self.copy.accepted, self.neural.accepted)
        return np.minimum(accepted + 1, self.trace.remaining)


def columns(trace: CounterfactualTrace, candidates: Candidates | None) -> Columns:
    """What a gate may know at every row, where its copier offers these candidates."""
    none = np.zeros(len(trace), dtype=np.int64)
    matched = none if candidates is None else candidates.match_length
    some = none.astype(bool) if candidates is None else candidates.some
    return Columns(trace.committed, some, matched, trace.score)


def _cut(
    trace: CounterfactualTrace,
    policy: Policy,
    candidates: Candidates | None,
    copy: Drafted,
    neural: Drafted,
) -> tuple[Drafted, Drafted]:
    """Both paths' drafts where the gate says how deep each may be."""
    seen, everywhere = columns(trace, candidates), np.ones(len(trace), dtype=bool)
    of_copies = policy.gate.depth_many(seen, everywhere)
    depth = policy.gate.depth_many(seen, ~everywhere)
    if of_copies is None or depth is None:
        raise SwitchSDError("a gate that chooses depths by what it remembers cannot be replayed")
    if policy.copier is not None:
        copy = cut_copies(trace, policy.copier, of_copies)
    if isinstance(policy.neural, TracedDraft) and policy.neural.whole:
        if ((depth > 0) & (depth < policy.neural.depth)).any():
            raise SwitchSDError(
                f"{policy.neural.kind} was traced as it is, and a draft cut short is another: "
                "replay this gate with a chain"
            )
        return copy, whole_or_nothing(neural, depth > 0)
    return copy, cut_chain(neural, depth)
