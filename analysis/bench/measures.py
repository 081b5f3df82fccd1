"""Statistics of a race from its tables of steps, live or replayed. Pure functions.

Speed is of decoding alone: tokens that steps emitted over the time of those steps, pooled over
prompts. Accepted lengths leave out the bonus. Without loops means: steps that begin before the
text's loop, of the tokens of a step that reaches into it only those before, of its time their
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...decoding.step.log import path_shares
from ...intervals import combined, draw, ratio

if TYPE_CHECKING:
    from .race import Race

BASE = "vanilla"

WITHOUT = "_without_loops"
"""Ends the names of statistics that leave loops out."""

TIMES = ("draft", "verify", "lookup", "gate", "rest")
"""Parts of a step's time; `<part>_ms` in the tables of steps."""

ALL = "all"
"""Stands for the sets together."""

_RESAMPLES = 2000


def race_rows(race: Race, order: Sequence[str]) -> pd.DataFrame:
    """What a race says of every policy: the row table of `bench`, `draft eval` and `demo`.

    Args:
        race: the race.
        order: labels, vanilla among them.

    Returns:
        `bench_rows`, and prefill_s and draft_prefill_s (means over prompts), n_exact (texts that
        are transformers' own).
    """
    rows = bench_rows(race.steps, order)
    known = []
    for name, policy in zip(rows["set"], rows["policy"], strict=True):
        mine = _of(race.runs, name, policy)
        means = mine[["prefill_s", "draft_prefill_s"]].mean().to_dict()
        known.append({**means, "n_exact": int(mine["token_exact"].sum())})
    return pd.concat([rows, pd.DataFrame(known)], axis=1)


def bench_rows(steps: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """One row a set × policy, the sets together first.

    Args:
        steps: set, prompt_id, policy, position, path, proposed, accepted, emitted, ms, loop (as
            `race.Race` has them), and `<part>_ms` where they were measured.
        order: labels, vanilla among them.

    Returns:
        set, policy, n_prompts, loops (texts with one), and each of these with and
        `_without_loops`: tokens_per_s (pooled), tokens_per_s_mean (of prompts), speedup over
        vanilla with speedup_low and speedup_high (95 % over resampled prompts), steps, what
        `path_shares` gives, rejected_share (`rejected_ms`) and the share of each part of the time.
    """
    steps = _with_plain(steps)
    tables = {"": steps, WITHOUT: before_loops(steps)}
    speeds = {suffix: per_prompt(table) for suffix, table in tables.items()}
    sets = list(dict.fromkeys(steps["set"]))
    rows: list[dict[str, Any]] = []
    for name in [ALL, *sets] if len(sets) > 1 else sets:
        for policy in order:
            mine = _of(steps, name, policy)
            row = {"set": name, "policy": policy, **_texts(mine)}
            for suffix, table in tables.items():
                found = _shares(_of(table, name, policy))
                found |= _speeds(_of(speeds[suffix], name), policy)
                row |= {f"{key}{suffix}": value for key, value in found.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def before_loops(steps: pd.DataFrame) -> pd.DataFrame:
    """What of the steps lies before their text's loop; see the module's text."""
    kept = steps[steps["position"] < steps["loop"]].copy()
    inside = np.minimum(kept["emitted"], kept["loop"] - kept["position"])
    for name in [column for column in kept if str(column).endswith("ms")]:
        if name != "plain_ms":
            kept[name] = kept[name] * inside / kept["emitted"]
    kept["accepted"] = np.minimum(kept["accepted"], inside)
    return kept.assign(emitted=inside)


def per_prompt(steps: pd.DataFrame) -> pd.DataFrame:
    """Tokens and decode time of each text, as `speed_ratio` takes them.

    Returns:
        set, prompt_id, policy, n_tokens, decode_s, tokens_per_s.
    """
    sums = steps.groupby(["set", "prompt_id", "policy"], sort=False)[["emitted", "ms"]].sum()
    table = sums.rename(columns={"emitted": "n_tokens"}).assign(decode_s=sums["ms"] / 1e3)
    speed = table["n_tokens"] / table["decode_s"]
    return table.drop(columns="ms").assign(tokens_per_s=speed).reset_index()


def rejected_ms(steps: pd.DataFrame) -> pd.Series:
    """Time lost on drafts of which nothing was accepted, of each step.

    What such a step took beyond a plain step of vanilla on the same prompt, which would have
    emitted the same one token; 0 for every other step.
    """
    vain = (steps["proposed"] > 0) & (steps["accepted"] == 0)
    return (steps["ms"] - steps["plain_ms"]).clip(lower=0).where(vain, 0.0)


def _with_plain(steps: pd.DataFrame) -> pd.DataFrame:
    """With the mean time of vanilla's steps on the same prompt."""
    plain = steps[steps["policy"] == BASE].groupby("prompt_id")["ms"].mean()
    return steps.assign(plain_ms=steps["prompt_id"].map(plain))


def _of(table: pd.DataFrame, name: str, policy: str | None = None) -> pd.DataFrame:
    kept = table if name == ALL else table[table["set"] == name]
    return kept if policy is None else kept[kept["policy"] == policy]


def _texts(steps: pd.DataFrame) -> dict[str, int]:
    last = steps.groupby("prompt_id").tail(1)
    looped = last["loop"] < last["position"] + last["emitted"]
    return {"n_prompts": len(last), "loops": int(looped.sum())}


def _shares(steps: pd.DataFrame) -> dict[str, float]:
    drafted, copied = steps["proposed"] > 0, steps["path"] == "copy"
    ms = steps["ms"].sum()
    found: dict[str, float] = {"steps": len(steps)}
    found |= path_shares(*(column.to_numpy() for column in (drafted, copied, steps["accepted"])))
    found["rejected_share"] = rejected_ms(steps).sum() / ms if ms else np.nan
    for part in TIMES:
        taken = steps[f"{part}_ms"] if f"{part}_ms" in steps else pd.Series([np.nan])
        known = ms > 0 and bool(taken.notna().all())
        found[f"{part}_time_share"] = taken.sum() / ms if known else np.nan
    return found


def _speeds(prompts: pd.DataFrame, policy: str) -> dict[str, float]:
    mine = prompts[prompts["policy"] == policy]
    both = prompts[prompts["policy"].isin({policy, BASE})]
    counts = both.groupby("prompt_id")["policy"].nunique()
    shared = both[both["prompt_id"].map(counts) == len({policy, BASE})]
    found = {
        "tokens_per_s": mine["n_tokens"].sum() / mine["decode_s"].sum() if len(mine) else np.nan,
        "tokens_per_s_mean": mine["tokens_per_s"].mean(),
    }
    faster = (np.nan,) * 3 if shared.empty else speed_ratio(shared, policy, BASE)
    return found | dict(zip(("speedup", "speedup_low", "speedup_high"), faster, strict=True))


def accepted_per_position(steps: pd.DataFrame) -> pd.DataFrame:
    """Share of neural drafts with at least `position` accepted tokens, by set and policy.

    Copied drafts are left out. Returns: set, policy, position, share.
    """
    neural = steps[(steps["path"] == "neural") & (steps["proposed"] > 0)]
    rows = [
        {"set": name, "policy": policy, "position": k, "share": float((part >= k).mean())}
        for (name, policy), part in neural.groupby(["set", "policy"], sort=False)["accepted"]
        for k in range(1, max(1, int(part.max())) + 1)
    ]
    return pd.DataFrame(rows, columns=["set", "policy", "position", "share"])


def over_eagle3(runs: pd.DataFrame) -> pd.DataFrame:
    """SwitchSD's tokens/s over EAGLE-3's on each set, and the sets' mean; nothing without both.

    Returns: set, ratio, low, high (95 % over resampled prompts; none for the mean).
    """
    rows: list[dict[str, Any]] = []
    if {"switchsd", "eagle3"} <= set(runs["policy"]):
        for name, part in runs.groupby("set", sort=False):
            ratio, low, high = speed_ratio(part, "switchsd", "eagle3")
            rows.append({"set": name, "ratio": ratio, "low": low, "high": high})
        mean = float(np.mean([row["ratio"] for row in rows]))
        rows.append({"set": "mean", "ratio": mean, "low": None, "high": None})
    return pd.DataFrame(rows, columns=["set", "ratio", "low", "high"])


def speed_ratio(runs: pd.DataFrame, policy: str, base: str) -> tuple[float, float, float]:
    """Pooled tokens/s of one policy over another's, and its 95 % interval over prompts."""
    wide = runs.pivot(index="prompt_id", columns="policy", values=["n_tokens", "decode_s"])
    speeds = [ratio(wide["n_tokens", name], wide["decode_s", name]) for name in (policy, base)]
    faster = combined(np.divide, *speeds)
    found = draw(faster, len(wide), n_boot=_RESAMPLES, least=1).estimate()
    return found.value, found.low, found.high
