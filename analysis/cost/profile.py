"""What a step costs: a latency profile, measured on one machine or written down for another.

A step's time is overhead + lookup + gate + draft + verify. Verification is a surface over tokens
(draft and anchor) and context (tokens in the cache); drafting, for each kind of draft, one over
lookahead γ and the tokens that go through the draft first because they were committed since
("pending").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ...decoding.gates.gate import Outcome
from ...errors import SwitchSDError
from ...runs import read_json, write_json
from .surface import Surface

SCHEMA = 1
"""Version of the profile's JSON; a newer one is refused."""


@dataclass(frozen=True)
class LatencyProfile:
    """Milliseconds of every part of a step.

    Attributes:
        verification: tokens (draft and anchor) × context.
        drafts: kind (eagle3, sps, tree_20_4_4 …) → γ × pending.
        overhead_ms: of every step: tree, acceptance, cache, stops.
        lookup_ms: looking for copy candidates; None if it was not measured.
        gate_ms: the probe's score and the decision; None if it was not measured.
        about: machine, model, spread of the measurements.

    Example:
        >>> LatencyProfile.load(Path("profile.json")).verify(6, 300)
    """

    verification: Surface
    drafts: dict[str, Surface] = field(default_factory=dict)
    overhead_ms: float = 0.0
    lookup_ms: float | None = None
    gate_ms: float | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("overhead_ms", "lookup_ms", "gate_ms"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise SwitchSDError(f"{name} = {value}: a time is a number of at least 0")

    def verify(self, tokens: ArrayLike, context: ArrayLike) -> Float[np.ndarray, "*any"]:
        """Time of the target's forward over `tokens` (draft and anchor) after `context`."""
        return self.verification.at(tokens, context)

    def draft(self, kind: str, gamma: ArrayLike, pending: ArrayLike) -> Float[np.ndarray, "*any"]:
        """Time of a draft of depth γ with `pending` tokens to take in first.

        Raises:
            SwitchSDError: no costs of this kind of draft.
        """
        self.require(drafts=[kind])
        return self.drafts[kind].at(gamma, pending)

    def require(
        self, *, drafts: Iterable[str] = (), lookup: bool = False, gate: bool = False
    ) -> None:
        """Raise unless these costs are there.

        Raises:
            SwitchSDError: names those that are missing.
        """
        missing = [f"draft of {kind}" for kind in drafts if kind not in self.drafts]
        missing += ["lookup_ms"] if lookup and self.lookup_ms is None else []
        missing += ["gate_ms"] if gate and self.gate_ms is None else []
        if missing:
            raise SwitchSDError(
                f"the latency profile lacks {', '.join(missing)} (drafts it has: "
                f"{', '.join(self.drafts) or 'none'}): measure it with `switchsd profile`, or add "
                "it to the JSON"
            )

    def seconds(self, kind: str | None, depth: int = 0) -> Callable[[Outcome], float]:
        """Cost of a step as a bandit sees it, the same live and in replay.

        What both arms pay alike is in it; tokens the draft has to catch up with are not, since
        which arm they should be charged to is open.

        Args:
            kind: of the neural path's draft; None decodes one token there.
            depth: its lookahead, or depth of its tree.

        Raises:
            SwitchSDError: no costs of this kind of draft.
        """
        self.require(drafts=[kind] if kind is not None else [], lookup=True)
        fixed = self.overhead_ms + (self.lookup_ms or 0.0)

        def cost(outcome: Outcome) -> float:
            if not outcome.committed:
                raise SwitchSDError("the outcome does not say how many tokens were committed")
            ms = fixed + float(self.verify(outcome.proposed + 1, outcome.committed - 1))
            if kind is not None and outcome.path == "neural" and outcome.proposed:
                ms += float(self.draft(kind, min(depth, outcome.proposed), 1))
            return ms / 1e3

        return cost

    def check(self, fingerprint: str) -> None:
        """Raise if it was measured on another model; one that names no model fits any.

        Raises:
            SwitchSDError: another model's.
        """
        mine = self.about.get("fingerprint")
        if mine and fingerprint and mine != fingerprint:
            raise SwitchSDError(
                f"the latency profile was measured on {self.about.get('model', 'another model')} "
                f"({mine[:8]}), not on the model of the trace ({fingerprint[:8]}): measure one "
                "with `switchsd profile`"
            )

    def check_setup(self, dtype: str, threads: int) -> None:
        """Raise if it was measured in another setup than what it is held against.

        Raises:
            SwitchSDError: another dtype or number of threads; a profile that names none fits any.
        """
        for name, value in (("dtype", dtype), ("threads", threads)):
            mine = self.about.get(name)
            if mine is not None and mine != value:
                raise SwitchSDError(
                    f"the latency profile was measured with {name} {mine}, live decoding runs with "
                    f"{value}: measure one like it with `switchsd profile`"
                )

    def describe(self) -> dict[str, Any]:
        """The profile as JSON has it; `read` is the way back."""
        return {
            "schema": SCHEMA,
            "verify": _written(self.verification, "tokens", "context"),
            "draft": {
                kind: _written(surface, "gamma", "pending") for kind, surface in self.drafts.items()
            },
            "overhead_ms": self.overhead_ms,
            "lookup_ms": self.lookup_ms,
            "gate_ms": self.gate_ms,
            "about": self.about,
        }

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, self.describe())

    @classmethod
    def load(cls, path: Path) -> LatencyProfile:
        """Read a profile.

        Raises:
            SwitchSDError: a missing or damaged file, or numbers no profile can have.
        """
        try:
            return cls.read(read_json(path))
        except SwitchSDError as error:
            raise SwitchSDError(
                str(error) if str(path) in str(error) else f"{path}: {error}"
            ) from error

    @classmethod
    def read(cls, about: Any) -> LatencyProfile:
        """A profile from its JSON; keys as `describe` gives them, all but `verify` optional.

        Raises:
            SwitchSDError: what is missing or wrong.
        """
        if not isinstance(about, dict) or "verify" not in about:
            raise SwitchSDError(
                "no latency profile: it has no key `verify` with tokens, context and ms"
            )
        schema = about.get("schema", SCHEMA)
        if not isinstance(schema, int) or schema > SCHEMA:
            raise SwitchSDError(f"latency profile of schema {schema}; upgrade switchsd to read it")
        drafts = about.get("draft") or {}
        if not isinstance(drafts, dict):
            raise SwitchSDError("`draft` names each kind with its gamma, pending and ms")
        overhead = _number(about, "overhead_ms")
        return cls(
            _surface(about["verify"], "verify", "tokens", "context"),
            {
                kind: _surface(part, f"draft of {kind}", "gamma", "pending")
                for kind, part in drafts.items()
            },
            0.0 if overhead is None else overhead,
            _number(about, "lookup_ms"),
            _number(about, "gate_ms"),
            about.get("about") or {},
        )


def _written(surface: Surface, rows: str, columns: str) -> dict[str, Any]:
    return {
        rows: surface.rows.tolist(),
        columns: surface.columns.tolist(),
        "ms": surface.ms.tolist(),
    }


def _surface(part: Any, name: str, rows: str, columns: str) -> Surface:
    try:
        arrays = [np.asarray(part[key], dtype=np.float64) for key in (rows, columns, "ms")]
    except (KeyError, TypeError, ValueError) as error:
        raise SwitchSDError(
            f"{name}: give lists of numbers {rows}, {columns} and ms [{rows}][{columns}] ({error})"
        ) from error
    try:
        return Surface(*arrays)
    except SwitchSDError as error:
        raise SwitchSDError(f"{name}: {error}") from error


def _number(about: dict[str, Any], key: str) -> float | None:
    value = about.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SwitchSDError(f"{key} = {value!r} is no number")
    return float(value)
