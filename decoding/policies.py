"""Policies by name: a gate, a copier and a neural drafter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..errors import SwitchSDError
from ..probing.copy_probe import CopyProbe
from .drafters.copy import Copier, FirstCopier, Lookup, RecentCopier
from .drafters.drafter import Drafter
from .drafters.suffix import SuffixCopier
from .gates.bandits import Exp3Gate, UcbGate
from .gates.cost_aware import CostAwareFit, CostAwareGate
from .gates.gate import CopyGate, DraftPath, Gate, NeuralGate, Observation, ProbeGate
from .shipped import shipped_fit
from .step.tree import DraftTree


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
        seed: of the gates that draw (bandit-exp3).
        fit: of cost-aware; None takes the shipped one. It brings W, D, n and γ.
    """

    W: int = 1
    D: int = 10
    n: int = 3
    tau: float | None = None
    probe: CopyProbe | None = None
    neural: Drafter | None = None
    seed: int = 0
    fit: CostAwareFit | None = None

    def __post_init__(self) -> None:
        if min(self.W, self.D, self.n) < 1:
            raise SwitchSDError(
                f"W = {self.W}, D = {self.D}, n = {self.n}: each has to be at least 1"
            )


@dataclass(frozen=True)
class Draft:
    """What a step is going to verify.

    Attributes:
        path: the gate's decision.
        tree: the draft; empty where there was nothing to draft with.
        match_length: of the newest candidate, 0 without one.
    """

    path: DraftPath
    tree: DraftTree
    match_length: int


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

    def draft(
        self,
        committed: list[int],
        *,
        score: float | None,
        limit: int,
        stops: frozenset[int] = frozenset(),
        generator: torch.Generator | None = None,
    ) -> Draft:
        """Look, decide, draft: everything of a step that comes before the target's forward.

        Args:
            committed: prompt and new tokens.
            score: the probe's at the newest processed position.
            limit: how deep the draft may be; 0 leaves it empty.
            stops: ids behind which a copy does not go on.
            generator: None under greedy decoding.
        """
        lookup = self.copier.look(committed) if self.copier is not None else Lookup()
        has_candidate = bool(lookup.candidates)
        seen = Observation(len(committed), has_candidate, lookup.match_length, score)
        path = self.gate.decide(seen)
        depth = self.gate.depth(seen, path)
        limit = limit if depth is None else min(limit, depth)
        tree = DraftTree()
        if limit >= 1 and path == "copy":
            tree = lookup.tree(limit, stops)
        elif limit >= 1 and self.neural is not None:
            tree = self.neural.propose(committed, limit, generator)
        return Draft(path, tree, lookup.match_length)


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


def _suffix(options: Options) -> Policy:
    copier = SuffixCopier(options.D)
    return Policy("suffix", CopyGate(), copier, options.neural, options.probe)


def _neural(name: str) -> Callable[[Options], Policy]:
    def build(options: Options) -> Policy:
        if options.neural is None:
            raise SwitchSDError(f"{name} needs a draft: --draft, or a drafter as options.neural")
        return Policy(name, NeuralGate(), None, options.neural, options.probe)

    return build


def _bandit(name: str, gate: Callable[[Options], Gate]) -> Callable[[Options], Policy]:
    def build(options: Options) -> Policy:
        copier = RecentCopier(options.W, options.D, options.n)
        return Policy(name, gate(options), copier, options.neural, options.probe)

    return build


def _cost_aware(options: Options) -> Policy:
    if options.probe is None:
        raise SwitchSDError("cost-aware needs the probe it was fitted with: pass it")
    neural = options.neural
    kind, digest = (None, None) if neural is None else (neural.kind, neural.digest)
    model = options.probe.fingerprint
    fit = options.fit or shipped_fit(model, kind)
    fit.check(model=model, probe=options.probe.digest, kind=kind, draft=digest)
    copier = RecentCopier(fit.W, max(1, *itertools.chain(*fit.copy)), fit.n)
    return Policy("cost-aware", CostAwareGate(fit), copier, options.neural, options.probe)


def _most_emitted(options: Options) -> int:
    return 1 + max(options.D, options.neural.depth if options.neural is not None else 0)


POLICIES: dict[str, Callable[[Options], Policy]] = {
    "vanilla": _vanilla,
    "pld": _pld,
    "copyspec": _copyspec,
    "suffix": _suffix,
    "sps": _neural("sps"),
    "eagle3": _neural("eagle3"),
    "eagle3-tree": _neural("eagle3-tree"),
    "bandit-ucb": _bandit("bandit-ucb", lambda o: UcbGate(_most_emitted(o))),
    "bandit-exp3": _bandit("bandit-exp3", lambda o: Exp3Gate(_most_emitted(o), seed=o.seed)),
    "switchsd": _switchsd,
    "cost-aware": _cost_aware,
}


def build_policy(name: str, options: Options | None = None) -> Policy:
    """The policy of that name.

    Raises:
        SwitchSDError: no such policy, or options it cannot be built from.
    """
    if name not in POLICIES:
        raise SwitchSDError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return POLICIES[name](options or Options())
