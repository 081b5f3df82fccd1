"""The paper's Tables 1, 2 and 3 from a benchmark's rows: as data, and for people."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..figures.words import number, percent, policy_name
from .measures import TIMES, WITHOUT
from .methods import SPS

_COLUMNS = (
    *("tokens_per_s", "speedup", "speedup_low", "speedup_high"),
    *("copy_share", "mean_accepted_copy", "neural_share", "mean_accepted_neural"),
)
"""Of `measures.bench_rows`, with and without loops."""

_SMALL = ("vanilla", "pld", "sps")
"""Policies of Table 2 whose label does not say so: none drafts with EAGLE-3."""


def table1(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """Throughput and speedup of every policy with EAGLE-3, or without a draft.

    Args:
        rows: `bench_rows` with draft and source (live or replay).
        model: its name.

    Returns:
        model, set, policy, draft, source, n_prompts, and of `bench_rows` tokens_per_s, speedup
        (with speedup_low and speedup_high), copy_share, mean_accepted_copy, neural_share and
        mean_accepted_neural, all of them `_without_loops` too.
    """
    small = rows["policy"].str.endswith(SPS) | (rows["draft"] == "sps")
    return _table(rows[~small], model)


def table2(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """The same with the small draft model (SPS) as the neural path."""
    small = rows["policy"].str.endswith(SPS) | rows["policy"].isin(_SMALL)
    return _table(rows[small], model)


def table3(gammas: pd.DataFrame, model: str) -> pd.DataFrame:
    """Best lookahead of a draft alone and inside SwitchSD (`bench_replay.best_gammas`)."""
    return gammas.assign(model=model)[["model", *gammas.columns]] if len(gammas) else gammas


def throughput_table(table: pd.DataFrame, *, without_loops: bool = False) -> pd.DataFrame:
    """Table 1 or 2 for people: one row a policy, four columns a set.

    Copy and draft say "% of steps / mean accepted".
    """
    end = WITHOUT if without_loops else ""
    sets = list(dict.fromkeys(table["set"]))
    rows = []
    for policy in dict.fromkeys(table["policy"]):
        row = {"policy": _name(policy)}
        for name in sets:
            mine = table[(table["set"] == name) & (table["policy"] == policy)]
            row |= dict(zip(_columns(name), _cells(mine, end), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


def gamma_table(table: pd.DataFrame) -> pd.DataFrame:
    """Table 3 for people."""
    rows = []
    for row in table.to_dict("records"):
        cells = {"draft": policy_name(str(row["draft"])), "set": str(row["set"])}
        for end, words in (("", ""), (WITHOUT, ", without loops")):
            for place, title in (("alone", "γ alone"), ("inside", "γ in SwitchSD")):
                gamma, speed = row[f"{place}_gamma{end}"], row[f"{place}_speedup{end}"]
                cells[title + words] = f"{gamma:.0f} ({speed:.2f}×)"
        rows.append(cells)
    return pd.DataFrame(rows)


def time_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Where the time of a step goes, for people; of the first set in the rows (all together)."""
    mine = rows[rows["set"] == rows["set"].iloc[0]]
    table = pd.DataFrame({"policy": [_name(policy) for policy in mine["policy"]]})
    for part in TIMES:
        table[part] = [percent(value) for value in mine[f"{part}_time_share"]]
    table["rejected drafts"] = [percent(value) for value in mine["rejected_share"]]
    table["prefill, ms"] = [number(1e3 * value, 0) for value in mine["prefill_s"]]
    table["of it the draft's"] = [number(1e3 * value, 0) for value in mine["draft_prefill_s"]]
    return table


def draft_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `switchsd draft eval` for people."""
    return pd.DataFrame(
        {
            "set": rows["set"],
            "policy": rows["policy"],
            "γ": [number(value, 0) for value in rows["gamma"]],
            "accepted": [number(value, 2) for value in rows["mean_accepted"]],
            "without loops": [number(value, 2) for value in rows[f"mean_accepted{WITHOUT}"]],
            "tokens/s": [number(value, 1) for value in rows["tokens_per_s"]],
            "speed over vanilla": [_speed(row, "") for row in rows.to_dict("records")],
            "prompts": rows["n_prompts"].astype(str),
            "exact": rows["n_exact"].astype(str),
        }
    )


def temperature_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Speed over vanilla at each temperature, for people."""
    found = []
    for temperature, mine in rows.groupby("temperature", sort=True):
        row = {"temperature": f"{temperature:g}"}
        row |= {_name(each["policy"]): _speed(each, "") for each in mine.to_dict("records")}
        found.append(row)
    return pd.DataFrame(found)


def divergence_table(diverged: pd.DataFrame) -> pd.DataFrame:
    """Where texts leave transformers' own, for people."""
    return pd.DataFrame(
        {
            "set": diverged["set"],
            "prompt": diverged["prompt_id"],
            "policy": [_name(policy) for policy in diverged["policy"]],
            "after tokens": diverged["at"].astype(str),
            "gap of the two largest logits": [f"{value:.2g}" for value in diverged["margin"]],
        }
    )


def _table(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    named = rows.assign(model=model, policy=rows["policy"].str.removesuffix(SPS))
    kept = [name + end for end in ("", WITHOUT) for name in _COLUMNS]
    about = ["model", "set", "policy", "draft", "source", "n_prompts"]
    return named[[*about, *kept]].reset_index(drop=True)


def _columns(name: str) -> list[str]:
    return [f"{name} tokens/s", f"{name} speed", f"{name} copy", f"{name} draft"]


def _cells(mine: pd.DataFrame, end: str) -> Sequence[str]:
    if mine.empty:
        return ["–"] * 4
    row = mine.iloc[0]
    return [
        number(row[f"tokens_per_s{end}"], 1),
        _speed(row, end),
        _path(row, "copy", end),
        _path(row, "neural", end),
    ]


def _speed(row: object, end: str) -> str:
    speed, low, high = (row[f"speedup{part}{end}"] for part in ("", "_low", "_high"))  # type: ignore[index]
    return "–" if pd.isna(speed) else f"{speed:.2f}× ({low:.2f}–{high:.2f})"


def _path(row: pd.Series, path: str, end: str) -> str:
    share, accepted = row[f"{path}_share{end}"], row[f"mean_accepted_{path}{end}"]
    return "–" if pd.isna(accepted) else f"{100 * share:.1f} % / {accepted:.2f}"


def _name(policy: str) -> str:
    name = policy_name(policy.removesuffix(SPS))
    return f"{name} with SPS" if policy.endswith(SPS) else name
