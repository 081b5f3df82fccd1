"""Steps of every policy on the same prompts, as claims are judged by them; intervals over prompts.

They come from a benchmark (live) or a trace (replayed); both have the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...errors import SwitchSDError
from ...intervals import Estimate, combined, draw, ratio
from ...runs import Run, read_parquet
from ..bench.measures import before_loops, per_prompt, speed_ratio
from ..bench.methods import SPS
from ..bench.replayed import replayed_steps
from ..cost.profile import LatencyProfile
from ..replay.settings import Setting
from ..traces.trace import CounterfactualTrace

_CHAINS = ("copyspec", "switchsd", "bandit-ucb")


def bench_steps(run: Run) -> pd.DataFrame:
    """The greedy steps of a benchmark, as `bench.run_bench` left them.

    Raises:
        SwitchSDError: no finished benchmark.
    """
    manifest = run.manifest()
    if manifest.get("command") != "bench" or manifest.get("state") != "complete":
        raise SwitchSDError(f"{run.path} is no finished run of `switchsd bench`")
    return run.table("steps")


def sampled_steps(run: Run) -> dict[float, pd.DataFrame]:
    """The steps at each temperature above 0 of a benchmark."""
    found = {}
    for folder in sorted((run.path / "sampled").glob("*")):
        files = sorted(folder.glob("*/steps.parquet"))
        if files:
            found[float(folder.name)] = pd.concat(map(_read, files), ignore_index=True)
    return found


def claimed_steps(trace: CounterfactualTrace, profile: LatencyProfile | None) -> pd.DataFrame:
    """The steps of the claims' policies over a trace, as far as they can be replayed."""
    settings = {name: Setting(name) for name in ("vanilla", "pld", "suffix", "eagle3", "sps")}
    settings |= {name: Setting(name, draft="eagle3") for name in _CHAINS}
    settings |= {name + SPS: Setting(name, draft="sps") for name in _CHAINS}
    return replayed_steps(trace, settings, profile, leave_out=True)


def copy_attempts(steps: pd.DataFrame) -> pd.DataFrame:
    """How many copies were tried, and how many in vain, of each policy on each set.

    Args:
        steps: set, policy, path, accepted; one row a step.

    Returns:
        set, policy, attempts, in_vain (nothing accepted), share (in vain; NaN without any).
    """
    copies = steps[steps["path"] == "copy"].assign(vain=lambda rows: rows["accepted"] == 0)
    sums = copies.groupby(["set", "policy"], sort=False)["vain"].agg(["size", "sum"])
    every = pd.MultiIndex.from_frame(steps[["set", "policy"]].drop_duplicates())
    table = sums.reindex(every, fill_value=0).reset_index()
    table.columns = pd.Index(["set", "policy", "attempts", "in_vain"])
    share = table["in_vain"] / table["attempts"].where(table["attempts"] > 0, np.nan)
    return table.assign(share=share)


def ratio_of_sums(
    steps: pd.DataFrame,
    top: Callable[[pd.DataFrame], pd.Series],
    bottom: Callable[[pd.DataFrame], pd.Series],
    policies: Sequence[str],
    combine: Callable[..., Float[np.ndarray, "*any"]] = lambda value: value,
) -> Estimate | None:
    """Σ top / Σ bottom over the steps of each policy, combined; with an interval over prompts.

    Args:
        steps: of a set.
        top: what is summed above, of steps.
        bottom: what is summed below.
        policies: their ratios are the arguments of `combine`; None if one has no steps.
        combine: of the ratios.
    """
    parts = []
    for policy in policies:
        mine = steps[steps["policy"] == policy]
        if mine.empty:
            return None
        sums = pd.DataFrame({"top": top(mine), "bottom": bottom(mine), "id": mine["prompt_id"]})
        parts.append(sums.astype({"top": float, "bottom": float}).groupby("id").sum())
    prompts = sorted(set.union(*(set(part.index) for part in parts)))  # no such step there: 0
    filled = [part.reindex(prompts, fill_value=0.0) for part in parts]
    ratios = [ratio(part["top"], part["bottom"]) for part in filled]
    return draw(combined(combine, *ratios), len(prompts), least=1).estimate()


def speed_over(
    steps: pd.DataFrame, policy: str, base: str, *, loops: bool = True
) -> Estimate | None:
    """Tokens/s of one policy over another's on the prompts that both have; None without both."""
    if "ms" not in steps:
        return None
    both = steps[steps["policy"].isin({policy, base})]
    if set(both["policy"]) != {policy, base}:
        return None
    prompts = per_prompt(both if loops else before_loops(both))
    shared = prompts.groupby("prompt_id")["policy"].transform("nunique") == len({policy, base})
    if not shared.any():
        return None
    return Estimate(*speed_ratio(prompts[shared], policy, base))


def _read(file: Path) -> pd.DataFrame:
    return read_parquet(file)
