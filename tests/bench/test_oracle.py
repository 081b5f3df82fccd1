"""The oracle: equal to trying every sequence of steps, and never worse than any policy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.replay.oracle import (
    actions,
    cheapest,
    oracle_full,
    oracle_path,
    oracle_shares,
    share,
)
from switchsd.analysis.replay.paths import TracedDraft
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.gates.gate import DraftPath, Gate, Observation
from switchsd.decoding.policies import POLICIES, Policy
from tiny_traces import made_up, profile_for

PROFILE = profile_for()
UNLIKE = ("eagle3-tree", "cost-aware")  # no draft of the setting's, or depths of its own


class ByList(Gate):
    """A gate that follows a list of paths, whatever it sees."""

    def __init__(self, paths: tuple[DraftPath, ...]) -> None:
        self.paths = paths

    def reset(self) -> None:
        self.left = list(self.paths)

    def decide(self, seen: Observation) -> DraftPath:
        return self.left.pop(0)


def every_sequence(
    trace: CounterfactualTrace, kind: str, gammas: list[int], sizes: list[tuple[int, int]]
):
    """The least time over all ways through one prompt, each priced by the profile alone."""
    start, end = int(trace.prompts["n_prompt"][0]), len(trace.texts[0])
    accepted = dict(zip(trace.committed, trace.accepted(kind), strict=True))
    text = trace.texts[0]

    @cache
    def copies(place: int, W: int, D: int) -> tuple[int, int]:
        copier = RecentCopier(W, D, 1)
        tree = copier.look(text[:place]).tree(limit(place), frozenset())
        most = 0
        for candidate in copier.look(text[:place]).candidates:
            run = 0
            for token in candidate.tokens[: limit(place)]:
                if place + run >= end or text[place + run] != token:
                    break
                run += 1
            most = max(most, run)
        return len(tree), most

    def limit(place: int) -> int:
        return int(trace.limit[place - start])

    @cache
    def verify(place: int, proposed: int) -> float:
        return float(PROFILE.verify(proposed + 1, place - 1)) + 0.5

    @cache
    def draft(depth: int, pending: int) -> float:
        return float(PROFILE.draft(kind, depth, pending))

    def best(place: int, cached: int) -> float:
        if place >= end:
            return 0.0
        found = [verify(place, 0) + best(place + 1, cached)]
        for W, D in sizes:
            proposed, right = copies(place, W, D)
            if proposed:
                found.append(verify(place, proposed) + 0.05 + best(place + right + 1, cached))
        for gamma in gammas:
            depth = min(gamma, limit(place))
            if depth:
                right = min(int(accepted[place]), depth)
                kept = place + (min(right, depth - 1) if kind == "sps" else 0)
                ms = verify(place, depth) + draft(depth, place - cached)
                found.append(ms + best(place + right + 1, kept))
        return min(found)

    return best(start, start - 1)


@pytest.mark.parametrize("kind", ["eagle3", "sps"])
@pytest.mark.parametrize("seed", range(4))
def test_equals_every_sequence(kind: str, seed: int) -> None:
    trace = made_up(prompts=1, tokens=8, seed=seed)
    fixed = Setting(draft=kind, gamma=3, W=2, D=4, n=1)
    path = oracle_path(trace, fixed, PROFILE)
    assert path.prompt_ms[0] == pytest.approx(every_sequence(trace, kind, [3], [(2, 4)]))
    sizes, gammas = [(1, 2), (2, 2), (1, 5)], [1, 3]
    some = cheapest(trace, actions(trace, fixed, PROFILE, sizes, gammas=gammas))
    assert some.prompt_ms[0] == pytest.approx(every_sequence(trace, kind, gammas, sizes))


def test_equals_the_best_of_all_lists_of_paths() -> None:
    """The same against replay itself; lookups are free here, since a policy always looks."""
    profile = replace(PROFILE, lookup_ms=0.0)
    for seed, kind in itertools.product(range(3), ("eagle3", "sps", "tree_8_3_2")):
        trace = made_up(prompts=1, tokens=6, seed=seed)
        fixed = Setting(draft=kind, gamma=3, W=2, D=4, n=1)
        never = Policy("plain", ByList(()), RecentCopier(2, 4, 1), None)
        least = np.inf
        for paths in itertools.product(("copy", "neural"), repeat=6):
            policy = replace(never, gate=ByList(paths), neural=TracedDraft(kind, 3))
            least = min(least, replay(trace, policy, profile=profile).prompt_ms()[0])
        oracle = oracle_path(trace, fixed, profile)
        assert oracle.prompt_ms[0] <= least + 1e-9
        if (oracle.steps["path"] != "plain").all():
            assert oracle.prompt_ms[0] == pytest.approx(least)


def test_never_worse_than_a_policy() -> None:
    trace = made_up(prompts=6, tokens=40)
    worse = 0
    for kind, (W, D, n), gamma in itertools.product(
        ("eagle3", "sps"), ((1, 10, 3), (4, 20, 1)), (2, 5)
    ):
        fixed = Setting(W=W, D=D, n=n, draft=kind, gamma=gamma)
        path = oracle_path(trace, fixed, PROFILE)
        full = oracle_full(trace, fixed, PROFILE)
        assert (full.prompt_ms <= path.prompt_ms + 1e-9).all()
        for tau in (0.0, 0.3, 0.5, 0.9):
            played = replay(trace, replace(fixed, tau=tau), profile=PROFILE).prompt_ms()
            assert (path.prompt_ms <= played + 1e-9).all()
            worse += (played > path.prompt_ms + 1).sum()
        for name in ("bandit-ucb", "bandit-exp3", "vanilla", "sps" if kind == "sps" else "eagle3"):
            played = replay(trace, replace(fixed, policy=name), profile=PROFILE).prompt_ms()
            assert (path.prompt_ms <= played + 1e-9).all(), name
    assert worse > 50, "the policies are as good: the check proves little"


def test_steps_are_a_whole_run_and_cost_what_is_said() -> None:
    trace = made_up(prompts=4, tokens=40, seed=2)
    oracle = oracle_full(trace, Setting(n=1), PROFILE)
    for number, (_, steps) in enumerate(oracle.steps.groupby("prompt_id", sort=False)):
        start, n = int(trace.prompts["n_prompt"][number]), steps["emitted"].to_numpy()
        assert steps["position"].tolist() == (start + np.cumsum(n) - n).tolist()
        assert n.sum() == 40
        assert steps["ms"].sum() == pytest.approx(oracle.prompt_ms[number])
        assert steps["step"].tolist() == list(range(len(steps)))
    steps = oracle.steps
    assert {"copy", "neural"} <= set(steps["path"])
    assert (steps["accepted"] <= steps["size"]).all()
    # with nothing to gain from a longer draft it takes just as many tokens as are right
    neural = steps[(steps["path"] == "neural")]
    assert (neural["accepted"] == neural["proposed"]).mean() > 0.9
    assert neural["size"].nunique() > 2


def test_free_drafts_are_taken_whole_and_dear_ones_never() -> None:
    trace = made_up(prompts=3, tokens=30)
    dear = replace(
        PROFILE,
        drafts={k: replace(s, ms=s.ms + 1e4) for k, s in PROFILE.drafts.items()},
        lookup_ms=1e4,
    )
    fixed = Setting(W=4, n=1, gamma=5)
    assert set(oracle_path(trace, fixed, dear).steps["path"]) == {"plain"}
    without = oracle_path(trace, replace(fixed, draft="none"), PROFILE)
    assert set(without.steps["path"]) == {"plain", "copy"}


def test_shares_pool_prompts() -> None:
    trace = made_up(prompts=6, tokens=40)
    fixed = Setting(W=4, D=20, n=1, gamma=4)
    policies = {name: replace(fixed, policy=name) for name in POLICIES if name not in UNLIKE}
    table = oracle_shares(trace, policies, PROFILE, fixed=fixed).set_index(["policy", "set"])
    assert table.loc[("eagle3", "all"), "share"] == pytest.approx(0.0)
    assert (table.loc["oracle_full", "share"] >= 1).all()
    of_switch = table.loc["switchsd"]
    assert (of_switch["share"] <= 1).all()
    for part in ("set0", "set1"):
        keep = (trace.prompts["set"] == part).to_numpy()
        alone = trace.only(keep)
        ms = replay(alone, policies["switchsd"], profile=PROFILE).prompt_ms().sum()
        always = replay(alone, policies["eagle3"], profile=PROFILE).prompt_ms().sum()
        bound = oracle_path(alone, fixed, PROFILE).prompt_ms.sum()
        assert of_switch.loc[part, "share"] == pytest.approx((always - ms) / (always - bound))
    sums = of_switch.loc[["set0", "set1"], ["ms", "draft_ms", "oracle_ms"]].sum()
    assert of_switch.loc["all", "share"] == pytest.approx(share(*sums))
    assert np.isnan(share(5.0, 5.0, 5.0))


def test_what_the_oracle_lacks_is_named() -> None:
    trace = made_up()
    with pytest.raises(SwitchSDError, match="lacks draft of eagle3"):
        oracle_path(trace, Setting(), profile_for([]))
    with pytest.raises(SwitchSDError, match="lookup_ms"):
        oracle_path(trace, Setting(), replace(PROFILE, lookup_ms=None))
    with pytest.raises(SwitchSDError, match="over always drafting"):
        oracle_shares(trace, {}, PROFILE, fixed=Setting(draft="none"))
