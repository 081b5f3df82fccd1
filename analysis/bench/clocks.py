"""A policy whose parts are timed one by one, and whose draft takes in the prompt during prefill.

`StepLog` knows a step as draft, verify and overhead. Here each part that the loop composes is put
into a `Timed` that notes how long its calls took: lookup and decision are then taken out of draft,
the probe's scoring out of overhead. A draft that first sees the prompt in its first proposal would
have that counted as decoding; `Primed` lets it happen in the prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ...decoding.drafters.drafter import Drafter
from ...decoding.policies import Policy
from ...decoding.step.clock import now
from ...decoding.step.log import StepLog
from ...decoding.step.tree import DraftTree


class Timed:
    """Stands for a part and notes the seconds of each call of one of its methods.

    Args:
        part: a gate, a copier or a probe; everything else about it shows through.
        method: whose calls are timed.
        device: waited for before the clock is read.
    """

    def __init__(self, part: Any, method: str, device: torch.device) -> None:
        self.part, self.method, self.device = part, method, device
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.part, name)
        return self._timed(found) if name == self.method else found

    def _timed(self, call: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = now(self.device)
            given = call(*args, **kwargs)
            self.seconds.append(now(self.device) - begin)
            return given

        return timed


class Primed:
    """A drafter that takes in the prompt when the target has; a `Drafter`.

    What it proposes afterwards is what it would have proposed anyway.

    Args:
        drafter: the drafter.
        device: waited for before the clock is read.

    Attributes:
        prompt: the next text's prompt; set it before the text begins.
        prefill_s: seconds the drafter took for it.
    """

    def __init__(self, drafter: Drafter, device: torch.device) -> None:
        self.drafter, self.device = drafter, device
        self.prompt: list[int] = []
        self.prefill_s = 0.0
        self._waits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def reset(self) -> None:
        """Forget the last prompt."""
        self.drafter.reset()
        self.prefill_s, self._waits = 0.0, True

    def absorb(self, streams: dict[str, Tensor]) -> None:
        """Take the streams; the first ones are the prompt's, and are drafted from once."""
        self.drafter.absorb(streams)
        if self._waits:
            self._waits = False
            begin = now(self.device)
            self.drafter.propose(self.prompt, 1, None)
            self.prefill_s = now(self.device) - begin

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """What the drafter proposes."""
        self._waits = False  # a prompt of one token has no prefill
        return self.drafter.propose(committed, limit, generator)


@dataclass(frozen=True)
class Watched:
    """A policy with its parts under the clock; for one text at a time.

    Attributes:
        policy: to decode with.
        gate: its gate.
        copier: its copier, if it has one.
        probe: its probe, if it has one.
        drafter: its drafter, if it has one.
    """

    policy: Policy
    gate: Timed
    copier: Timed | None
    probe: Timed | None
    drafter: Primed | None

    @classmethod
    def of(cls, policy: Policy, prompt: Sequence[int], device: torch.device) -> Watched:
        """Put a policy's parts under the clock for a text that begins with this prompt."""
        gate = Timed(policy.gate, "decide", device)
        copier = Timed(policy.copier, "look", device) if policy.copier is not None else None
        probe = Timed(policy.probe, "score", device) if policy.probe is not None else None
        drafter = None
        if policy.neural is not None:
            drafter = Primed(policy.neural, device)
            drafter.prompt = [int(token) for token in prompt]
        parts: dict[str, Any] = {
            "gate": gate, "copier": copier, "probe": probe, "neural": drafter
        }  # fmt: skip
        return cls(replace(policy, **parts), gate, copier, probe, drafter)

    def steps(self, trace: StepLog) -> pd.DataFrame:
        """The text's steps, one row each.

        Returns:
            `StepLog.steps_frame` with the milliseconds in their own parts: draft_ms is drafting
            alone, lookup_ms the search for candidates, gate_ms the probe's score and the decision,
            verify_ms the target's forward, rest_ms everything else; ms is their sum.
        """
        frame = trace.steps_frame()
        decide = self._milliseconds(self.gate, len(frame))
        lookup = self._milliseconds(self.copier, len(frame))
        score = self._milliseconds(self.probe, len(frame))
        frame["ms"] = frame["draft_ms"] + frame["verify_ms"] + frame["overhead_ms"]
        frame["draft_ms"] -= lookup + decide
        frame["lookup_ms"] = lookup
        frame["gate_ms"] = decide + score
        frame["rest_ms"] = frame.pop("overhead_ms") - score
        return frame

    @property
    def draft_prefill_s(self) -> float:
        """Seconds of the draft's own prefill."""
        return self.drafter.prefill_s if self.drafter is not None else 0.0

    def _milliseconds(self, part: Timed | None, steps: int) -> pd.Series:
        """Of each step's call; one more came with the prompt where the probe scored it."""
        if part is None:
            return pd.Series(0.0, index=range(steps))
        return 1e3 * pd.Series(part.seconds[len(part.seconds) - steps :], index=range(steps))
