"""Gates: which path the next step takes, copy or neural, from committed tokens only.

A gate never sees the draft's outcome before it decides; that is what keeps sampling exact. The same
objects run live and in replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from ...errors import SwitchSDError

Path = Literal["copy", "neural"]


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


@dataclass(frozen=True)
class Outcome:
    """What a step gave, for gates that learn.

    Attributes:
        path: the path taken.
        accepted: accepted draft tokens.
        emitted: accepted + bonus.
        seconds: the step's time.
        proposed: draft tokens verified (tree nodes).
        committed: committed tokens before the step.
    """

    path: Path
    accepted: int
    emitted: int
    seconds: float
    proposed: int = 0
    committed: int = 0


class Gate(Protocol):
    """Decides a path each step.

    It may also have `depth(seen, path)`: how deep the draft of that path may be at most, D of a
    copy and γ of a chain alike; 0 drafts nothing, None leaves it to the drafter.

    A gate without memory may have `decide_many(columns)`: True where it copies; and with `depth`
    also `depth_many(columns, copies)`. Replay then asks once for a whole trace; its `reset` and
    `observe` must do nothing.
    """

    def reset(self) -> None:
        """Forget the last prompt."""

    def decide(self, seen: Observation) -> Path:
        """Choose the path of the next step."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from the step just taken."""


class Memoryless:
    """A gate that neither learns nor forgets."""

    def reset(self) -> None:
        """Nothing to forget."""

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class NeuralGate(Memoryless):
    """Never copies (vanilla, SPS, EAGLE-3)."""

    def decide(self, seen: Observation) -> Path:
        """Always neural."""
        return "neural"

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """True nowhere."""
        return np.zeros(len(seen.committed), dtype=bool)


class CopyGate(Memoryless):
    """Copies whenever the context offers a candidate (PLD, CopySpec)."""

    def decide(self, seen: Observation) -> Path:
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

    def __init__(self, tau: float) -> None:
        if not 0 <= tau <= 1:
            raise SwitchSDError(f"tau = {tau}: the threshold on the probe's score lies in 0–1")
        self.tau = tau

    def decide(self, seen: Observation) -> Path:
        """Copy on intent and opportunity."""
        wants = seen.score is not None and seen.score >= self.tau
        return "copy" if wants and seen.has_candidate else "neural"

    def decide_many(self, seen: Columns) -> Bool[np.ndarray, " row"]:
        """True on intent and opportunity.

        Compared in float64, as `decide` does: numpy would round τ to the scores' own precision.
        """
        return (seen.score.astype(np.float64) >= self.tau) & seen.has_candidate
