"""Speeds of a run's policies, whatever command made it, and two runs side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from ...errors import SwitchSDError
from ...runs import Run
from .measures import ALL

COLUMNS = ("set", "policy", "tokens_per_s", "speedup", "copy_share", "mean_accepted")
"""What `run_speeds` gives; a figure that a run does not have is missing.

`mean_accepted` is over the steps that drafted, on either path.
"""


def run_speeds(run: Run) -> pd.DataFrame:
    """One row a set of prompts and policy; see `COLUMNS`.

    Reads `rows` of a benchmark, `decoding` of a demo and `replay` of a replay.

    Raises:
        SwitchSDError: a run without any of them, or a damaged one.
    """
    for name, read in _READERS.items():
        if run.has_table(name):
            table = read(run, run.table(name))
            lacking = [column for column in ("set", "policy") if column not in table]
            if lacking:
                raise SwitchSDError(
                    f"{run.path.name}'s {name} table lacks {', '.join(lacking)}: it was made by "
                    "another version of switchsd; make the run again"
                )
            return table.reindex(columns=list(COLUMNS))
    raise SwitchSDError(f"{run.path.name} has no table of speeds yet; let the run finish")


def compare(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Both runs' figures of the sets and policies that both have, and the ratio of the speeds.

    Returns:
        set, policy, then tokens_per_s, speedup and mean_accepted with `_1` and `_2`, and
        `speed_ratio` (the second's tokens/s over the first's).
    """
    kept = ["set", "policy", "tokens_per_s", "speedup", "mean_accepted"]
    both = one[kept].merge(other[kept], on=["set", "policy"], suffixes=("_1", "_2"))
    return both.assign(speed_ratio=both["tokens_per_s_2"] / both["tokens_per_s_1"])


def _of_race(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    return table


def _of_demo(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """A demo of version 0.1 names no set, and its table holds no mean over both paths."""
    if "set" in table:
        return table
    steps = run.table("steps")
    drafted = steps[steps["path"] != "plain"].groupby("policy")["accepted"].mean()
    return table.assign(set=ALL, mean_accepted=table["policy"].map(drafted))


def _of_replay(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Settings of a sweep are told apart by what differs between them."""
    named = ("policy", "tau", "W", "D", "n", "draft", "gamma", "seed")
    varied = [name for name in named if name in table and table[name].nunique(dropna=False) > 1]
    words = [
        " ".join(
            str(row[name]) if name == "policy" else f"{name}={row[name]:g}"
            if isinstance(row[name], float) else f"{name}={row[name]}"
            for name in dict.fromkeys(["policy", *varied])
            if not pd.isna(row[name])
        )
        for row in table.to_dict("records")
    ]  # fmt: skip
    return table.assign(policy=words)


_READERS: dict[str, Callable[[Run, pd.DataFrame], pd.DataFrame]] = {
    "rows": _of_race,
    "decoding": _of_demo,
    "replay": _of_replay,
}
