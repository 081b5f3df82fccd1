"""What a benchmark races: every policy of the registry, and some once more with the draft model.

A label is the policy's name; `+sps` behind it means that its neural path drafts with the small
draft model instead of the EAGLE-3 head (the paper's Table 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...decoding.drafts import Drafts
from ...decoding.neural import TREE, neural_drafter
from ...decoding.policies import POLICIES, Options, Policy, build_policy
from ...decoding.step.tree_shape import TreeShape
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens

SPS = "+sps"
WITH_SPS = ("copyspec", "bandit-ucb", "switchsd", "cost-aware")
"""Policies that are raced with the draft model too."""


@dataclass(frozen=True)
class Method:
    """A policy as it is raced.

    Attributes:
        label: names it in every table.
        policy: what decodes.
        draft: of its neural path: eagle3, eagle3-tree, sps or none.
        depth: how deep its neural drafts are; None without.
    """

    label: str
    policy: Policy
    draft: str
    depth: int | None


@dataclass(frozen=True)
class Methods:
    """What is raced, and what is not.

    Attributes:
        raced: by label, vanilla first.
        left_out: label → why it cannot be built here.
    """

    raced: dict[str, Method]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def policies(self) -> dict[str, Policy]:
        """What is raced, as the race takes it."""
        return {label: method.policy for label, method in self.raced.items()}


def labels() -> list[str]:
    """Every label there is."""
    return [*POLICIES, *(name + SPS for name in WITH_SPS)]


def bench_methods(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    names: Sequence[str] | None = None,
    *,
    among: Sequence[str] | None = None,
    tree: TreeShape = TREE,
) -> Methods:
    """Build what is to be raced.

    Args:
        lens: the target.
        drafts: head and draft model, as far as there are any.
        probe: of the policies that read it; it scores nothing under the others.
        names: labels; None: all that can be built. Vanilla is always among them.
        among: all, if no labels are named; None: every one there is.
        tree: of eagle3-tree.

    Raises:
        SwitchSDError: an unknown label, or a named one that cannot be built.
    """
    known = labels()
    for name in names or ():
        if name not in known:
            raise SwitchSDError(f"unknown policy {name!r}: choose among {', '.join(known)}")
    wanted = among or known
    if names is not None:
        wanted = [name for name in known if name in {"vanilla", *names}]
    found = Methods({})
    for label in wanted:
        try:
            found.raced[label] = _method(label, lens, drafts, probe, tree)
        except SwitchSDError as error:
            if names is not None:
                raise
            found.left_out[label] = str(error)
    return found


def fit_digests(methods: Methods) -> dict[str, str | None]:
    """What each gate's fit can be known by; None for gates that were not fitted."""
    return {label: method.policy.gate.digest for label, method in methods.raced.items()}


def _method(
    label: str, lens: Lens, drafts: Drafts, probe: CopyProbe | None, tree: TreeShape
) -> Method:
    name = label.removesuffix(SPS)
    recipe = POLICIES[name]
    small = label.endswith(SPS) or recipe.draft == "sps"
    draft = drafts.model if small else drafts.head
    if draft is None and (small or recipe.draft in ("eagle3", "eagle3-tree")):
        kind = "draft model" if small else "EAGLE-3 head"
        raise SwitchSDError(f"{label} needs a {kind}: train one with `switchsd draft train`")
    neural = None if draft is None else neural_drafter(name, lens, draft=draft, tree=tree)
    # a policy that only records scores need not pay for them
    own = probe if "probe" in recipe.reads else None
    policy = build_policy(name, Options(neural=neural, probe=own))
    kind = "none" if neural is None else "sps" if small else "eagle3"
    if neural is not None and neural.tree is not None:
        kind = "eagle3-tree"
    return Method(label, policy, kind, None if policy.neural is None else policy.neural.depth)
