"""Policies by name: a gate, a copier and a neural drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SwitchSDError
from ..probing.copy_probe import CopyProbe
from .drafters import Drafter
from .drafters.copy import Copier, FirstCopier, RecentCopier
from .gates import CopyGate, Gate, NeuralGate, ProbeGate


@dataclass(frozen=True)
class Options:
    """What policies are built from; each takes what it needs.

    Attributes:
        W: copy candidates (switchsd).
        D: tokens of each candidate (every copying policy).
        n: tokens that have to match (copyspec, switchsd).
        tau: threshold on the probe's score; None takes the probe's own.
        probe: the probe switchsd is gated by; others only record its score.
        neural: drafter of the non-copy path; None decodes one token there.
    """

    W: int = 1
    D: int = 10
    n: int = 3
    tau: float | None = None
    probe: CopyProbe | None = None
    neural: Drafter | None = None


@dataclass(frozen=True)
class Policy:
    """What the engine composes."""

    name: str
    gate: Gate
    copier: Copier | None = None
    neural: Drafter | None = None
    probe: CopyProbe | None = None

    def reset(self) -> None:
        """Make ready for a new prompt."""
        for part in (self.gate, self.copier, self.neural):
            if part is not None:
                part.reset()


def _vanilla(options: Options) -> Policy:
    return Policy("vanilla", NeuralGate(), probe=options.probe)


def _pld(options: Options) -> Policy:
    return Policy("pld", CopyGate(), FirstCopier((2, 1), options.D), probe=options.probe)


def _copyspec(options: Options) -> Policy:
    copier = FirstCopier((options.n,), options.D)
    return Policy("copyspec", CopyGate(), copier, options.neural, options.probe)


def _switchsd(options: Options) -> Policy:
    if options.probe is None:
        raise SwitchSDError("switchsd needs a probe: pass one, or train one with `switchsd demo`")
    tau = options.probe.tau if options.tau is None else options.tau
    copier = RecentCopier(options.W, options.D, options.n)
    return Policy("switchsd", ProbeGate(tau), copier, options.neural, options.probe)


POLICIES: dict[str, Callable[[Options], Policy]] = {
    "vanilla": _vanilla,
    "pld": _pld,
    "copyspec": _copyspec,
    "switchsd": _switchsd,
}


def build_policy(name: str, options: Options | None = None) -> Policy:
    """The policy of that name.

    Raises:
        SwitchSDError: no such policy, or options it cannot be built from.
    """
    if name not in POLICIES:
        raise SwitchSDError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return POLICIES[name](options or Options())
