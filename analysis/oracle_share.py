"""How much of what an oracle would gain a policy gains, over always drafting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from ..decoding.policies import Policy
from ..errors import SwitchSDError
from .cost import LatencyProfile
from .oracle import oracle_full, oracle_path
from .replay import replay
from .replay_setting import Setting
from .traced import Traced

_COMPARED = ("copyspec", "switchsd", "bandit-ucb", "bandit-exp3")


def oracle_shares(
    trace: Traced,
    policies: Mapping[str, Setting | Policy],
    profile: LatencyProfile,
    *,
    fixed: Setting | None = None,
) -> pd.DataFrame:
    """How much of what `oracle_path` gains over always drafting each policy gains.

    Args:
        trace: the prompts.
        policies: by name; `shared_policies` has those of the comparison.
        profile: what steps cost.
        fixed: draft, γ, W, D and n of always-draft and oracle; the defaults if None.

    Returns:
        policy, set ("all": every prompt; "mean": the mean of the sets' shares, where there are
        several), share (1 is the oracle's; negative where always drafting is faster; NaN where the
        oracle gains nothing), ms, draft_ms, oracle_ms; pooled over prompts. `oracle_full` stands
        among the policies.

    Raises:
        SwitchSDError: a draft that was not traced, costs the profile lacks, or no draft at all.
    """
    fixed = fixed or Setting()
    always = always_draft(trace, fixed)
    bound = oracle_path(trace, fixed, profile).prompt_ms
    base = replay(trace, always, profile=profile).prompt_ms()
    times = {
        label: replay(trace, policy, profile=profile).prompt_ms()
        for label, policy in policies.items()
    }
    times["oracle_full"] = oracle_full(trace, fixed, profile).prompt_ms
    sets = trace.prompts["set"].to_numpy()
    rows = []
    for label, ms in times.items():
        shares = []
        for part in ("all", *dict.fromkeys(sets)):
            keep = (sets == part) | (part == "all")
            sums = [float(each[keep].sum()) for each in (ms, base, bound)]
            shares.append(share(*sums))
            rows.append((label, part, shares[-1], *sums))
        if len(shares) > 2:
            rows.append((label, "mean", float(np.mean(shares[1:])), *[np.nan] * 3))
    return pd.DataFrame(rows, columns=["policy", "set", "share", "ms", "draft_ms", "oracle_ms"])


def always_draft(trace: Traced, fixed: Setting) -> Setting:
    """Always drafting with a setting's draft and γ.

    Raises:
        SwitchSDError: it has no draft, or one that was not traced.
    """
    draft = fixed.neural(trace)
    if draft is None:
        raise SwitchSDError("the oracle's share is over always drafting: trace a neural draft")
    name = "sps" if draft.kind == "sps" else "eagle3-tree" if draft.tree else "eagle3"
    return Setting(name, draft=draft.kind, gamma=fixed.gamma)


def shared_policies(fixed: Setting, *, fit: str | None = None) -> dict[str, Setting]:
    """The policies whose shares are compared: those that choose a path at every step.

    cost-aware drafts what its fit is for, where that is an EAGLE-3 tree too.

    Args:
        fixed: draft, γ, W, D and n of all but cost-aware, which chooses its own.
        fit: file with cost-aware's fit; the shipped one if None.
    """
    found = {name: replace(fixed, policy=name).reduced() for name in _COMPARED}
    own = None if fixed.draft == "eagle3" else fixed.draft  # its fit says: a chain or a tree
    return {**found, "cost-aware": Setting("cost-aware", draft=own, fit=fit)}


def share(policy_ms: float, draft_ms: float, oracle_ms: float) -> float:
    """(Always-draft − policy) / (always-draft − oracle); NaN where the oracle gains nothing."""
    gain = draft_ms - oracle_ms
    return (draft_ms - policy_ms) / gain if gain > 1e-9 * draft_ms else float("nan")
