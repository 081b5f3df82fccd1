"""What one generation did, step by step: two tables and the settings they came from.

Not the trace on disk, which knows every path at every position (`analysis.traces`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int

from ...data.token_texts import token_texts
from .clock import now


@dataclass(frozen=True)
class Step:
    """One verification pass.

    Attributes:
        number: from 0.
        path: copy, neural, or plain where nothing was drafted.
        position: of the first token it emitted.
        proposed: draft tokens (tree nodes).
        tokens: what it emitted, cut where the text ended.
        accepted: of these, accepted.
        sources: per emitted token, the position it was copied from; -1 where it was not.
        score: the probe's score the gate saw; None without one.
        match_length: how far the newest candidate's match went back; 0: no candidate.
        draft_ms: lookup, gate and drafting.
        verify_ms: the target's forward.
        overhead_ms: everything else: tree, mask, verification, KV, stops.
    """

    number: int
    path: str
    position: int
    proposed: int
    tokens: tuple[int, ...]
    accepted: int
    sources: tuple[int, ...]
    score: float | None
    match_length: int
    draft_ms: float
    verify_ms: float
    overhead_ms: float

    @property
    def emitted(self) -> int:
        """Tokens the step added to the text."""
        return len(self.tokens)

    def path_of(self, place: int) -> str:
        """How the step's token at `place` came about: copy or neural if it was drafted, bonus after
        a draft, plain without one."""
        return self.path if place < self.accepted or self.path == "plain" else "bonus"


class Timing:
    """Where the time of a step goes: its named parts, and the rest.

    Args:
        device: waited for before the clock is read.

    Attributes:
        seconds: from entering to leaving it.

    Example:
        >>> with Timing(lens.device) as timing:
        ...     with timing.part("draft"):
        ...         draft()
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self._parts = device, 0.0, dict[str, float]()

    def __enter__(self) -> Timing:
        self._begin = now(self.device)
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = now(self.device) - self._begin

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside is that part's."""
        begin = now(self.device)
        yield
        self._parts[name] = now(self.device) - begin

    def ms(self, name: str) -> float:
        """Milliseconds of a part."""
        return 1e3 * self._parts[name]

    @property
    def rest_ms(self) -> float:
        """Milliseconds outside of every part."""
        return 1e3 * (self.seconds - sum(self._parts.values()))


@dataclass
class StepLog:
    """Everything a generation did.

    Attributes:
        policy: name of the policy.
        prompt_ids: the prompt.
        steps: in order.
        scores: the probe's score at every processed position (empty without a probe).
        label_offset: the probe's; the score about token t was read at position t − offset.
        prefill_ms: time of the prompt's forward.
        finish: why it ended: eos, stop, length or context.
        settings: what the generation was asked for.
    """

    policy: str
    prompt_ids: list[int]
    steps: list[Step] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    label_offset: int = 0
    prefill_ms: float = 0.0
    finish: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def generated(self) -> list[int]:
        """Ids of the new tokens."""
        return [token for step in self.steps for token in step.tokens]

    @property
    def decode_ms(self) -> float:
        """Time of all steps, without the prompt's forward."""
        return sum(s.draft_ms + s.verify_ms + s.overhead_ms for s in self.steps)

    def score_about(self, position: int) -> float | None:
        """The probe's score about the token at `position`; None where it has none."""
        read_at = position - self.label_offset
        return self.scores[read_at] if 0 <= read_at < len(self.scores) else None

    def steps_frame(self) -> pd.DataFrame:
        """One row a step."""
        rows = [
            {
                "policy": self.policy,
                "step": s.number,
                "position": s.position,
                "path": s.path,
                "proposed": s.proposed,
                "accepted": s.accepted,
                "emitted": s.emitted,
                "score": s.score,
                "match_length": s.match_length,
                "draft_ms": s.draft_ms,
                "verify_ms": s.verify_ms,
                "overhead_ms": s.overhead_ms,
            }
            for s in self.steps
        ]
        return pd.DataFrame(rows, columns=_STEP_COLUMNS).astype({"score": float})

    def tokens_frame(self, tokenizer: Any = None) -> pd.DataFrame:
        """One row a token, the prompt's with step -1; with a tokenizer also `token_texts`."""
        rows: list[tuple[int, int, int, str, int]] = [
            (position, token, -1, "prompt", -1) for position, token in enumerate(self.prompt_ids)
        ]
        for s in self.steps:
            for place, token in enumerate(s.tokens):
                row = (s.position + place, token, s.number, s.path_of(place), s.sources[place])
                rows.append(row)
        frame = pd.DataFrame(rows, columns=["position", "id", "step", "path", "source"])
        frame.insert(0, "policy", self.policy)
        frame["score"] = pd.Series([self.score_about(p) for p in frame["position"]], dtype=float)
        if tokenizer is not None:
            frame["text"] = token_texts(frame["id"].tolist(), tokenizer.decode)
        return frame


def path_shares(
    drafted: Bool[np.ndarray, " step"],
    copied: Bool[np.ndarray, " step"],
    accepted: Int[np.ndarray, " step"],
) -> dict[str, float]:
    """How often steps took each path, and how much of their drafts was accepted.

    Args:
        drafted: whether anything was drafted.
        copied: whether it was a copy, if so.
        accepted: draft tokens accepted, without the bonus.

    Returns:
        copy_share, neural_share, plain_share (of steps); mean_accepted (of steps that drafted),
        mean_accepted_copy, mean_accepted_neural; NaN without such a step.

    Example:
        >>> steps = np.array([[1, 1, 4], [1, 0, 1], [0, 0, 0], [1, 0, 0]])
        >>> path_shares(steps[:, 0] > 0, steps[:, 1] > 0, steps[:, 2])["mean_accepted_neural"]
        0.5
    """
    copies, neural = drafted & copied, drafted & ~copied
    return {
        "copy_share": _mean(copies),
        "neural_share": _mean(neural),
        "plain_share": _mean(~drafted),
        "mean_accepted": _mean(accepted[drafted]),
        "mean_accepted_copy": _mean(accepted[copies]),
        "mean_accepted_neural": _mean(accepted[neural]),
    }


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


_STEP_COLUMNS = [
    *("policy", "step", "position", "path", "proposed", "accepted", "emitted", "score"),
    *("match_length", "draft_ms", "verify_ms", "overhead_ms"),
]

Trace = StepLog
"""The name it had in version 0.1."""
