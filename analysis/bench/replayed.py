"""What a benchmark takes from a counterfactual trace: policies on more prompts, and the best γ.

The figures are those of live runs (`bench_measures.bench_rows`), computed from replayed steps with
the times of a latency profile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping

import pandas as pd

from ...data.labels import loop_start
from ...decoding.neural import TREE
from ...errors import SwitchSDError
from ..cost.profile import LatencyProfile
from ..replay.oracle import oracle_shares, shared_policies
from ..replay.plan import Plan
from ..replay.replay import replay, sweep
from ..replay.settings import Setting
from ..traces.columns import GAMMA
from ..traces.trace import CounterfactualTrace
from .measures import ALL, BASE, WITHOUT, bench_rows
from .methods import SPS, WITH_SPS

_TIMED = "humaneval"


def setting_of(label: str, draft: str) -> Setting:
    """A benchmark's method as replay knows it.

    Args:
        label: of the method.
        draft: of its neural path, as `bench_methods.Method` has it.
    """
    return Setting(label.removesuffix(SPS), draft=_traced_as(draft)).reduced()


def _traced_as(draft: str) -> str:
    return TREE.name if draft == "eagle3-tree" else draft


def check_replayable(
    trace: CounterfactualTrace,
    settings: Mapping[str, Setting],
    profile: LatencyProfile | None,
    *,
    dtype: str,
    threads: int,
) -> None:
    """Refuse now what would be refused at the end.

    Args:
        trace: to be replayed.
        settings: of what is raced.
        profile: what steps cost.
        dtype: of live decoding.
        threads: of live decoding.

    Raises:
        SwitchSDError: a profile of another model or setup or without a policy's costs, a draft
            that was not traced.
    """
    if profile is not None:
        profile.check(trace.fingerprint)
        profile.check_setup(dtype, threads)
    for setting in settings.values():
        Plan.of(trace, setting.build(trace, profile), profile)


def replayed_steps(
    trace: CounterfactualTrace,
    settings: Mapping[str, Setting],
    profile: LatencyProfile | None,
    *,
    leave_out: bool = False,
) -> pd.DataFrame:
    """The steps of every method over a trace, as `bench_rows` takes them; ms only with a profile.

    Args:
        trace: to be replayed.
        settings: by label.
        profile: what steps cost.
        leave_out: those whose draft, scores or costs are not there.

    Raises:
        SwitchSDError: what `replay` raises, unless it is left out.
    """
    lengths = trace.prompts["n_prompt"].astype(int)
    loops = {
        prompt_id: n_prompt + loop_start(text[n_prompt:])
        for prompt_id, n_prompt, text in zip(
            trace.prompts["prompt_id"], lengths, trace.texts, strict=True
        )
    }
    tables = []
    for label, setting in settings.items():
        try:
            tables.append(replay(trace, setting, profile=profile).steps().assign(policy=label))
        except SwitchSDError:
            if not leave_out:
                raise
    steps = pd.concat(tables, ignore_index=True)
    return steps.assign(loop=steps["prompt_id"].map(loops))


def best_gammas(
    trace: CounterfactualTrace, profile: LatencyProfile, gammas: Iterable[int] = range(1, GAMMA + 1)
) -> pd.DataFrame:
    """The lookahead at which a draft is fastest, alone and as the neural path of SwitchSD.

    Chosen on the very prompts it is measured on, so it describes and promises nothing.

    Returns:
        draft, set, and each with and `_without_loops`: alone_gamma, alone_speedup, inside_gamma,
        inside_speedup; no rows where neither was traced with a probe's scores.
    """
    gammas = list(gammas)
    scored = bool(trace.positions["score"].notna().any()) and trace.tau is not None
    found = []
    for draft in ("eagle3", "sps"):
        if draft not in trace.drafts or not scored:
            continue
        settings = {BASE: Setting(BASE)}
        for gamma in gammas:
            settings[f"alone {gamma}"] = Setting(draft, gamma=gamma)
            settings[f"inside {gamma}"] = Setting("switchsd", draft=draft, gamma=gamma)
        rows = bench_rows(replayed_steps(trace, settings, profile), list(settings))
        for name, mine in rows.groupby("set", sort=False):
            row: dict[str, object] = {"draft": draft, "set": name}
            for place, suffix in itertools.product(("alone", "inside"), ("", WITHOUT)):
                speeds = mine.set_index("policy")[f"speedup{suffix}"]
                best = max(gammas, key=lambda g: speeds[f"{place} {g}"])
                row[f"{place}_gamma{suffix}"] = best
                row[f"{place}_speedup{suffix}"] = speeds[f"{place} {best}"]
            found.append(row)
    return pd.DataFrame(found)


def thousand_settings(trace: CounterfactualTrace) -> list[Setting]:
    """1,000 settings of gates without memory.

    SwitchSD over τ × γ × W × D; CopySpec over n × γ × D where the trace has no scores.
    """
    draft = next((kind for kind in ("eagle3", "sps") if kind in trace.drafts), "none")
    if trace.positions["score"].isna().all():
        by_n = itertools.product(range(1, 6), range(1, 11), range(1, 21))
        return [Setting("copyspec", n=n, gamma=gamma, D=D, draft=draft) for n, gamma, D in by_n]
    by_tau = itertools.product(range(1, 11), (2, 4, 5, 7, 10), (1, 2, 4, 8), (4, 8, 10, 16, 20))
    return [
        Setting("switchsd", tau=tenth / 11, gamma=gamma, W=W, D=D, draft=draft)
        for tenth, gamma, W, D in by_tau
    ]


def settings_seconds(
    trace: CounterfactualTrace, profile: LatencyProfile | None
) -> tuple[float, int]:
    """How long replay takes over 1,000 settings, and on how many prompts.

    On HumanEval's prompts where the trace has any, else on all; nothing is known beforehand.
    """
    keep = (trace.prompts["set"] == _TIMED).to_numpy()
    if not keep.any():
        keep = ~keep
    fresh, settings = trace.only(keep), thousand_settings(trace)
    begin = time.perf_counter()
    sweep(fresh, settings, profile=profile)
    return time.perf_counter() - begin, int(keep.sum())


def replayed_rows(
    trace: CounterfactualTrace,
    methods: pd.DataFrame,
    profile: LatencyProfile,
    but: Iterable[str] = (),
) -> pd.DataFrame:
    """`bench_rows` of the sets that were traced and not run live.

    Args:
        trace: the prompts.
        methods: policy (a label) and draft of each; transformers' own are left out.
        profile: what steps cost.
        but: sets that are left out.
    """
    skipped = set(but)
    keep = (~trace.prompts["set"].isin(skipped)).to_numpy()
    if not keep.any():
        return pd.DataFrame()
    some = trace.only(keep)
    settings = method_settings(methods)
    rows = bench_rows(replayed_steps(some, settings, profile), list(settings))
    return rows[rows["set"] != ALL].merge(methods, on="policy", how="left")


def speed_errors(live: pd.DataFrame, replayed: pd.DataFrame) -> pd.DataFrame:
    """Replayed speedup over vanilla against the live one.

    Args:
        live: `bench_rows` of the live steps.
        replayed: the same of the replayed ones.

    Returns:
        set, policy, live, replayed, error (relative).
    """
    both = live.merge(replayed, on=["set", "policy"], suffixes=("_live", "_replayed"))
    table = both[["set", "policy"]].assign(
        live=both["speedup_live"], replayed=both["speedup_replayed"]
    )
    return table.assign(error=table["replayed"] / table["live"] - 1)


def largest_errors(speeds: pd.DataFrame) -> dict[str, float]:
    """Policy → its largest relative error over the sets, of `speed_errors`."""
    sizes = speeds.assign(error=speeds["error"].abs())
    return dict(sizes.groupby("policy", sort=False)["error"].max())


def replayed_speeds(
    rows: pd.DataFrame,
    decoded: pd.Series,
    trace: CounterfactualTrace,
    methods: pd.DataFrame,
    profile: LatencyProfile,
) -> pd.DataFrame:
    """`speed_errors` of a benchmark's own live runs, on the sets whose prompts were all traced.

    Methods whose draft was not traced are left out.

    Args:
        rows: `bench_rows` of the live runs.
        decoded: set of each prompt that was decoded live, by prompt_id.
        trace: of these prompts, or of some.
        methods: policy (a label) and draft of each; transformers' own are left out.
        profile: what steps cost.

    Returns:
        Empty where no set was traced whole.
    """
    keep = trace.prompts["prompt_id"].isin(decoded.index)
    counts = decoded.value_counts()
    whole = trace.prompts.loc[keep, "set"].value_counts().reindex(counts.index) == counts
    if not whole.any():
        return pd.DataFrame(columns=["set", "policy", "live", "replayed", "error"])
    some = trace.only(keep.to_numpy())
    known = methods["draft"].map(_traced_as).isin(["none", *trace.drafts])
    settings = method_settings(methods[known])
    played = bench_rows(replayed_steps(some, settings, profile), list(settings))
    names = set(whole.index[whole]) | ({ALL} if whole.all() else set())
    return speed_errors(rows, played[played["set"].isin(names)])


def raced_shares(
    trace: CounterfactualTrace, methods: pd.DataFrame, profile: LatencyProfile
) -> dict[str, pd.DataFrame]:
    """`oracle_shares` of the raced policies that choose a path, for each traced draft.

    Returns:
        oracle_share (EAGLE-3 as a chain), oracle_share_tree (as the tree), oracle_share_sps, as far
        as traced. cost-aware drafts what its fit is for: beside it, where there is one, stands the
        fit for the chain.
    """
    labels = set(methods["policy"])
    found = {}
    for name, draft, suffix in (
        ("oracle_share", "eagle3", ""),
        ("oracle_share_tree", TREE.name, ""),
        ("oracle_share_sps", "sps", SPS),
    ):
        if draft not in trace.drafts:
            continue
        fixed = Setting(draft=draft)
        raced = {
            policy: setting
            for policy, setting in shared_policies(fixed).items()
            if policy + suffix in labels or (policy in labels and policy not in WITH_SPS)
        }
        if "cost-aware" in raced and draft == "eagle3":
            raced |= _with_a_chain(trace)
        found[name] = oracle_shares(trace, raced, profile, fixed=fixed)
    return found


def _with_a_chain(trace: CounterfactualTrace) -> dict[str, Setting]:
    chain = Setting("cost-aware", draft="eagle3")
    try:
        chain.build(trace)
    except SwitchSDError:  # no fit for it
        return {}
    return {"cost-aware (chain)": chain}


def method_settings(methods: pd.DataFrame) -> dict[str, Setting]:
    """`setting_of` for a benchmark's table of methods, transformers' own left out."""
    inside = methods[methods["draft"] != "outside"]
    return {
        label: setting_of(label, draft)
        for label, draft in zip(inside["policy"], inside["draft"], strict=True)
    }
