"""A policy by its name and its options, as one row of a sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ...decoding.gates.bandits import Bandit
from ...decoding.gates.cost_aware import CostAwareFit
from ...decoding.neural import GAMMA_EAGLE3, GAMMA_MOST, GAMMA_SPS
from ...decoding.policies import Options, Policy, build_policy, recipe_of
from ...decoding.shipped import shipped_tree
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .paths import TracedDraft


@dataclass(frozen=True)
class TracedProbe(CopyProbe):
    """A probe whose scores are in a trace.

    Attributes:
        traced: digest of the probe they are of.
    """

    traced: str = ""

    @classmethod
    def of(cls, trace: CounterfactualTrace, tau: float | None = None) -> TracedProbe:
        """The probe of a trace, without its weights."""
        site, digest = "blocks.0.hook_resid_post", trace.digests.get("probe") or ""
        none = torch.zeros(0)
        return cls(site, 0, tau or 0.0, none, 0.0, "traced", trace.fingerprint, traced=digest)

    @property
    def digest(self) -> str:
        """Of the probe that gave the scores."""
        return self.traced


@dataclass(frozen=True)
class Setting:
    """A policy of the registry, and what it is built from.

    Attributes:
        policy: its name.
        W: copy candidates.
        D: tokens of each.
        n: tokens that have to match.
        tau: threshold on the score; None takes the traced probe's own.
        draft: neural path of the policies that have one: eagle3, sps or a traced tree; None: what
            the name says, what cost-aware's fit is for, and EAGLE-3 for policies that take any;
            "none": one token.
        gamma: its lookahead; 5 with EAGLE-3, 4 with a draft model if None.
        seed: of the gates that draw.
        reward: of the bandits; "throughput" takes its costs from the profile.
        fit: file with the fit of cost-aware; None takes the shipped one. W, D and n are the fit's,
            and γ is at most 10 if None.
    """

    policy: str = "switchsd"
    W: int = 1
    D: int = 10
    n: int = 3
    tau: float | None = None
    draft: str | None = None
    gamma: int | None = None
    seed: int = 0
    reward: Literal["emitted", "throughput"] = "emitted"
    fit: str | None = None

    def build(self, trace: CounterfactualTrace, profile: LatencyProfile | None = None) -> Policy:
        """The policy as live decoding has it, but for the drafter, which is a traced one.

        Raises:
            SwitchSDError: options no such policy can have, or a draft that was not traced.
        """
        neural = self.neural(trace)
        probe = self._probe(trace) if "probe" in recipe_of(self.policy).reads else None
        fit = CostAwareFit.load(Path(self.fit)) if self.fit else None
        options = Options(
            self.W, self.D, self.n, neural=neural, probe=probe, seed=self.seed, fit=fit
        )
        policy = build_policy(self.policy, options)
        if policy.neural is not None:
            neural = TracedDraft.of(policy.neural, trace)
            policy = replace(policy, neural=neural)
        if self.reward == "throughput" and isinstance(policy.gate, Bandit):
            if profile is None:
                raise SwitchSDError("a bandit rewarded by throughput needs a latency profile")
            seconds = profile.seconds(*(neural.key if neural is not None else (None,)))
            return replace(policy, gate=policy.gate.by_throughput(seconds))
        return policy

    def reduced(self) -> Setting:
        """The same with what its policy does not read left as it is by default.

        So settings that cannot differ are equal.
        """
        recipe = recipe_of(self.policy)
        reads = set(recipe.reads)
        if recipe.draft in ("any", "eagle3-tree"):
            reads.add("draft")
        if recipe.draft not in ("none", "eagle3-tree"):
            reads.add("gamma")
        kept = {name: value for name, value in asdict(self).items() if name in reads}
        if recipe.draft == "eagle3-tree" and not _is_tree(self.draft):
            kept["draft"] = None
        if _is_tree(kept.get("draft")):
            kept["gamma"] = None
        return Setting(self.policy, **kept)

    def neural(self, trace: CounterfactualTrace) -> TracedDraft | None:
        """The policy's traced draft.

        Raises:
            SwitchSDError: one that was not traced, or not the policy's kind.
        """
        kind, recipe = self.draft, recipe_of(self.policy)
        fitted = "fit" in recipe.reads
        if kind is None and fitted:
            kind = self._fitted(trace)
        if kind is None:
            named = {"sps": "sps", "eagle3": "eagle3", "eagle3-tree": _first_tree(trace)}
            kind = named.get(recipe.draft, "eagle3" if "eagle3" in trace.drafts else "none")
        if recipe.draft == "none" or (kind == "none" and recipe.draft == "any"):
            return None
        if recipe.draft not in ("any", "eagle3-tree" if _is_tree(kind) else kind):
            raise SwitchSDError(f"{self.policy} does not draft with {kind}: leave the draft out")
        trace.accepted(kind)  # refuses one that was not traced
        gamma = self.gamma
        if gamma is None:
            gamma = GAMMA_SPS if kind == "sps" else GAMMA_EAGLE3
            gamma = GAMMA_MOST if fitted else gamma
        return TracedDraft(kind, gamma, digest=trace.digest(kind))

    def _fitted(self, trace: CounterfactualTrace) -> str | None:
        """The draft that cost-aware's fit is for."""
        if self.fit:
            return CostAwareFit.load(Path(self.fit)).kind or "none"
        tree = shipped_tree(trace.fingerprint)
        return tree.name if tree is not None and tree.name in trace.drafts else None

    def _probe(self, trace: CounterfactualTrace) -> CopyProbe:
        """The traced probe, with this setting's τ."""
        if np.isnan(trace.score).all():
            raise SwitchSDError(
                f"the trace has no probe scores: {self.policy} cannot be replayed on it"
            )
        tau = trace.tau if self.tau is None else self.tau
        if tau is None and "tau" in recipe_of(self.policy).reads:
            raise SwitchSDError("the trace does not say the probe's tau: give one")
        return TracedProbe.of(trace, tau)


def _first_tree(trace: CounterfactualTrace) -> str:
    return next((kind for kind in trace.drafts if _is_tree(kind)), "tree_20_4_4")


def _is_tree(kind: str | None) -> bool:
    return kind is not None and kind.startswith("tree_")
