"""Policies by name: how each is built, and what everything else wants to know of it.

`POLICIES` is the one table; a policy of one's own joins it with `register` (docs/extending.md) and
is then decoded, traced, replayed, raced and checked like any other. Starts without torch, since the
viewer and the command line choose from the table before they load a model.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import SwitchSDError
from .drafters.copy import Copier, FirstCopier, Lookup, RecentCopier
from .drafters.drafter import Drafter
from .drafters.suffix import SuffixCopier
from .gates.bandits import Exp3Gate, UcbGate
from .gates.gate import CopyGate, DraftPath, Gate, NeuralGate, Observation, ProbeGate
from .step.tree import DraftTree

if TYPE_CHECKING:
    import torch

    from ..probing.copy_probe import CopyProbe
    from .gates.cost_aware import CostAwareFit

VARIABLE = "SWITCHSD_POLICIES"
"""Environment variable with the files of one's own policies, separated as in PATH."""


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
        score: the probe's that the gate saw; None without one.
    """

    path: DraftPath
    tree: DraftTree
    match_length: int
    score: float | None


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
        return Draft(path, tree, lookup.match_length, score)


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
    from .gates.cost_aware import CostAwareGate
    from .shipped import shipped_fit

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


DraftKind = Literal["none", "any", "eagle3", "eagle3-tree", "sps"]


@dataclass(frozen=True)
class Recipe:
    """A row of the table.

    Attributes:
        build: makes the policy.
        draft: what drafts where it does not copy: none; any (a head or a draft model; without one,
            one token there); or the one that it cannot do without.
        reads: which options it reads, of W, D, n, tau, probe, fit, seed and reward.
        words: as its authors write it; the name where it is left out.
        own: whether a user registered it.
    """

    build: Callable[[Options], Policy]
    draft: DraftKind = "any"
    reads: tuple[str, ...] = ()
    words: str = ""
    own: bool = False


POLICIES: dict[str, Recipe] = {
    "vanilla": Recipe(_vanilla, "none"),
    "pld": Recipe(_pld, "none", ("D",), "PLD"),
    "copyspec": Recipe(_copyspec, "any", ("D", "n"), "CopySpec"),
    "suffix": Recipe(_suffix, "any", ("D",)),
    "sps": Recipe(_neural("sps"), "sps", (), "SPS"),
    "eagle3": Recipe(_neural("eagle3"), "eagle3", (), "EAGLE-3"),
    "eagle3-tree": Recipe(_neural("eagle3-tree"), "eagle3-tree", (), "EAGLE-3 tree"),
    "bandit-ucb": Recipe(
        _bandit("bandit-ucb", lambda o: UcbGate(_most_emitted(o))),
        "any",
        ("W", "D", "n", "reward"),
    ),
    "bandit-exp3": Recipe(
        _bandit("bandit-exp3", lambda o: Exp3Gate(_most_emitted(o), seed=o.seed)),
        "any",
        ("W", "D", "n", "reward", "seed"),
    ),
    "switchsd": Recipe(_switchsd, "any", ("W", "D", "n", "tau", "probe"), "SwitchSD"),
    "cost-aware": Recipe(_cost_aware, "any", ("probe", "fit"), "cost-aware SwitchSD"),
}


def recipe_of(name: str) -> Recipe:
    """The row of that name.

    Raises:
        SwitchSDError: no such policy.
    """
    if name not in POLICIES:
        raise SwitchSDError(f"unknown policy {name!r}: choose one of {', '.join(POLICIES)}")
    return POLICIES[name]


def build_policy(name: str, options: Options | None = None) -> Policy:
    """The policy of that name.

    Raises:
        SwitchSDError: no such policy, or options it cannot be built from.
    """
    return recipe_of(name).build(options or Options())


def register(
    name: str,
    build: Callable[[Options], Policy],
    *,
    draft: DraftKind = "any",
    reads: Sequence[str] = (),
    words: str = "",
) -> None:
    """Put a policy of one's own into the table; the same name again replaces it.

    Args:
        name: what it is asked for by.
        build: makes it, named `name`, from the options; called for every run anew.
        draft: what `Options.neural` has to hold for it, as `Recipe` says.
        reads: options that change what it does: replay and the exactness suite vary these.
        words: as reports write it.

    Raises:
        SwitchSDError: the name of a policy that comes with the lab.

    Example:
        >>> register("longest", lambda o: Policy("longest", CopyGate(), SuffixCopier(o.D)))
    """
    if name in POLICIES and not POLICIES[name].own:
        raise SwitchSDError(f"the policy {name!r} comes with the lab: give yours another name")
    POLICIES[name] = Recipe(build, draft, tuple(reads), words, own=True)


_loaded: set[Path] = set()


def load_policies(files: Sequence[Path] = ()) -> None:
    """Run the files in which policies are registered, each once: those named, and `VARIABLE`'s.

    Processes that this one starts find them too.

    Raises:
        SwitchSDError: a file that is not there or fails; it says where.
    """
    named = [*os.environ.get(VARIABLE, "").split(os.pathsep), *map(str, files)]
    paths = list(dict.fromkeys(Path(each).expanduser().resolve() for each in named if each))
    for path in paths:
        if path not in _loaded:
            _run(path)
            _loaded.add(path)
    if paths:
        os.environ[VARIABLE] = os.pathsep.join(map(str, paths))


def _run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"policies of {path}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SwitchSDError(f"{path} is no Python file to read policies from")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file does wrong is said of that file
        raise SwitchSDError(f"{path}: {type(error).__name__}: {error}") from error
