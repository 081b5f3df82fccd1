"""Figures of a race of drafts: accepted lengths, speeds and their intervals, from its tables.

Pure functions. The tables are those of `race.PromptRace` over all prompts, with a column `set`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..data.labels import loop_start

_RESAMPLES = 2000


def with_loops(steps: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """Steps with the position at which their text's loop starts (behind its end without one)."""
    by = ["set", "prompt_id", "policy"]
    starts = [
        (
            *key,
            int((text["step"] < 0).sum())
            + loop_start(text.loc[text["step"] >= 0, "id"].to_numpy()),
        )
        for key, text in tokens.sort_values("position").groupby(by, sort=False)
    ]
    return steps.merge(pd.DataFrame(starts, columns=[*by, "loop"]), on=by, how="left")


def draft_rows(runs: pd.DataFrame, steps: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """One row a set × policy.

    Args:
        runs: `PromptRace.runs` of all prompts, with `set`.
        steps: `with_loops`.
        order: policies, vanilla among them.

    Returns:
        set, policy, mean_accepted (over every step that verified a draft), the same
        without_loops (steps that begin before the loop, and of theirs the tokens before it),
        tokens_per_s, speedup with the 95 % interval of resampled prompts, n_prompts and n_exact
        (texts that are transformers' own).
    """
    rows = []
    for name in runs["set"].unique():
        for policy in order:
            mine = runs[(runs["set"] == name) & (runs["policy"] == policy)]
            drafted = _drafted(steps, name, policy)
            before = drafted[drafted["position"] < drafted["loop"]]
            counted = np.minimum(before["accepted"], before["loop"] - before["position"])
            ratio = speed_ratio(runs[runs["set"] == name], policy, "vanilla")
            rows.append(
                {
                    "set": name,
                    "policy": policy,
                    "mean_accepted": drafted["accepted"].mean(),
                    "mean_accepted_without_loops": counted.mean(),
                    "tokens_per_s": mine["n_tokens"].sum() / mine["decode_s"].sum(),
                    "speedup": ratio[0],
                    "speedup_low": ratio[1],
                    "speedup_high": ratio[2],
                    "n_prompts": len(mine),
                    "n_exact": int(mine["token_exact"].sum()),
                }
            )
    return pd.DataFrame(rows)


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
    tokens, seconds = (
        wide[value][[policy, base] if policy != base else [policy]].to_numpy(float)
        for value in ("n_tokens", "decode_s")
    )

    def ratio(rows: np.ndarray) -> np.ndarray:
        speed = tokens[rows].sum(axis=-2) / seconds[rows].sum(axis=-2)
        return speed[..., 0] / speed[..., -1]

    n = len(tokens)
    drawn = ratio(np.random.default_rng(0).integers(0, n, (_RESAMPLES, n)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(ratio(np.arange(n))), float(low), float(high)


def eval_table(rows: pd.DataFrame) -> pd.DataFrame:
    """`draft_rows` for people."""

    def number(value: float) -> str:
        return "–" if pd.isna(value) else f"{value:.2f}"

    return pd.DataFrame(
        {
            "set": rows["set"],
            "policy": rows["policy"],
            "γ": ["–" if pd.isna(gamma) else f"{gamma:.0f}" for gamma in rows["gamma"]],
            "accepted": rows["mean_accepted"].map(number),
            "without loops": rows["mean_accepted_without_loops"].map(number),
            "tokens/s": rows["tokens_per_s"].map(lambda value: f"{value:.1f}"),
            "speed over vanilla": [
                f"{row.speedup:.2f}× ({row.speedup_low:.2f}–{row.speedup_high:.2f})"
                for row in rows.itertuples()
            ],
            "prompts": rows["n_prompts"].astype(str),
            "exact": rows["n_exact"].astype(str),
        }
    )


def _drafted(steps: pd.DataFrame, name: str, policy: str) -> pd.DataFrame:
    mine = steps[(steps["set"] == name) & (steps["policy"] == policy)]
    return mine[mine["proposed"] > 0]
