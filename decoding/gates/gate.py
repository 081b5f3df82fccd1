"""Gates: which path the next step takes, copy or neural, from committed tokens only.

A gate never sees the draft's outcome before it decides; that is what keeps sampling exact. The same
objects run live and in replay. SwitchSD's with τ = 0.5:

    >>> gate = ProbeGate(0.5)
    >>> gate.decide(Observation(40, has_candidate=True, match_length=7, score=0.81))
    'copy'
    >>> gate.decide(Observation(40, has_candidate=True, match_length=7, score=0.32))  # no intent
    'neural'
    >>> gate.decide(Observation(40, has_candidate=False, match_length=0, score=0.81))  # no source
    'neural'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ...errors import SwitchSDError

DraftPath = Literal["copy", "neural"]
"""Who drafts: the context, or the neural drafter."""


@dataclass(frozen=True)
class Observation:
    """What a gate may know before a step.

    Attributes:
        committed: number of committed tokens.
        has_candidate: whether the context offers anything to copy.
        match_length: length of the newest candidate's match (0: none).
        score: the probe's score at the newest processed position; None without a probe or before
            anything was processed.
    """

    committed: int
    has_candidate: bool
    match_length: int
    score: float | None


@dataclass(frozen=True)
class Columns:
    """`Observation` at many positions at once, as a trace has it.

    Attributes:
        committed: number of committed tokens.
        has_candidate: whether the context offers anything to copy.
        match_length: length of the newest candidate's match (0: none).
        score: the probe's score; NaN where there is none.
    """

    committed: Int[np.ndarray, " row"]
    has_candidate: Bool[np.ndarray, " row"]
    match_length: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]

    def rows(self) -> Iterator[Observation]:
        """Each row as a gate sees it live."""
        columns = (self.committed, self.has_candidate, self.match_length, self.score)
        for committed, some, matched, score in zip(*(c.tolist() for c in columns), strict=True):
            yield Observation(committed, bool(some), matched, None if np.isnan(score) else score)


@dataclass(frozen=True)
class Outcome:
    """What a step gave, for gates that learn.

    Attributes:
        path: the path taken.
        accepted: draft tokens accepted.
        emitted: tokens emitted.
        seconds: the step's time.
        proposed: draft tokens verified (tree nodes).
        committed: committed tokens before the step.
    """

    path: DraftPath
    accepted: int
    emitted: int
    seconds: float
    proposed: int = 0
    committed: int = 0


class Gate:
    """Decides a path each step. Only `decide` has to be written; everything else has a default.

    Attributes:
        tau: its threshold on the probe's score, for those who draw it; None: it has none.
        thresholds: scores at which its choice turns: rounding may decide a step that near to one.
        needs_clock: whether it learns from the seconds of a step.
        digest: what its fit can be known by; None: it was not fitted.
        chooses_depth: whether its class has a `depth` of its own.
    """

    tau: float | None = None
    thresholds: tuple[float, ...] = ()
    needs_clock: bool = False
    digest: str | None = None
    chooses_depth: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.chooses_depth = cls.depth is not Gate.depth

    def reset(self) -> None:
        """Forget the last prompt."""

    def decide(self, seen: Observation) -> DraftPath:
        """Choose the path of the next step."""
        raise NotImplementedError

    def observe(self, outcome: Outcome) -> None:
        """Learn from the step just taken."""

    def depth(self, seen: Observation, path: DraftPath) -> int | None:
        """How deep the draft of that path may be at most, D of a copy and γ of a chain alike.

        0 drafts nothing, None leaves it to the drafter.
        """
        return None

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"] | None:
        """`decide` at every row, True where it copies; None: it remembers, so ask step by step."""
        return None

    def depth_many(
        self, seen: Columns, copies: Bool[np.ndarray, " row"]
    ) -> Int[np.ndarray, " row"] | None:
        """`depth` at every row, of a copy where `copies`; None: it remembers, or leaves it."""
        return None


class Memoryless(Gate):
    """A gate that neither learns nor forgets: `reset` and `observe` stay as they are.

    Replay asks it once for a whole trace, row by row through `decide` unless it knows better.
    """

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """`decide` at every row; True where it copies."""
        return np.array([self.decide(each) == "copy" for each in seen.rows()], dtype=bool)

    def depth_many(
        self, seen: Columns, copies: Bool[np.ndarray, " row"]
    ) -> Int[np.ndarray, " row"] | None:
        """`depth` at every row, of a copy where `copies`; None: it leaves it to the drafter."""
        if not self.chooses_depth:
            return None
        depths = [
            self.depth(each, "copy" if copied else "neural")
            for each, copied in zip(seen.rows(), copies.tolist(), strict=True)
        ]
        most = np.iinfo(np.int32).max
        return np.array([most if depth is None else depth for depth in depths], dtype=np.int64)


class NeuralGate(Memoryless):
    """Never copies (vanilla, SPS, EAGLE-3)."""

    def decide(self, seen: Observation) -> DraftPath:
        """Always neural."""
        return "neural"

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """True nowhere."""
        return np.zeros(len(seen.committed), dtype=bool)


class CopyGate(Memoryless):
    """Copies whenever the context offers a candidate (PLD, CopySpec)."""

    def decide(self, seen: Observation) -> DraftPath:
        """Copy if there is something to copy."""
        return "copy" if seen.has_candidate else "neural"

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """True where there is something to copy."""
        return seen.has_candidate.astype(bool)


class ProbeGate(Memoryless):
    """SwitchSD's rule: copy when the probe's score is at least τ and there is something to copy.

    Args:
        tau: threshold on the score, 0–1.

    Raises:
        SwitchSDError: τ outside 0–1.
    """

    tau: float

    def __init__(self, tau: float) -> None:
        if not 0 <= tau <= 1:
            raise SwitchSDError(f"tau = {tau}: the threshold on the probe's score lies in 0–1")
        self.tau, self.thresholds = tau, (tau,)

    def decide(self, seen: Observation) -> DraftPath:
        """Copy on intent and opportunity."""
        wants = seen.score is not None and seen.score >= self.tau
        return "copy" if wants and seen.has_candidate else "neural"

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """True on intent and opportunity.

        Compared in float64, as `decide` does: numpy would round τ to the scores' own precision.
        """
        return (seen.score.astype(np.float64) >= self.tau) & seen.has_candidate
