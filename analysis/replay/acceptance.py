"""How long drafts are accepted: by path, by the probe's state, by benchmark, with intervals.

Intervals are 95 % by bootstrap over prompts; with one prompt there are none. Pure, no model.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...intervals import Estimate, interval, mean, prompt_numbers
from ...runs import require
from ..figures.acceptance import COUNTED, STATES
from ..traces.trace import CounterfactualTrace
from .plan import Plan
from .replay import play
from .settings import Setting

SPAN = 20
"""Tokens of a copy candidate: the maximum length of the paper's Figure 3."""

ALL = "all"


def yields_of_positions(
    positions: pd.DataFrame, tau: float, *, n: int = 3, span: int = SPAN
) -> pd.DataFrame:
    """A trace's positions as a run's `copy_yield`: what the newest candidate had accepted.

    Only positions with room for `span` tokens: nearer to the end the budget cuts copies short.

    Args:
        positions: of one prompt or many.
        tau: the probe is on where its score is at least τ.
        n: tokens that have to match.
        span: tokens of a copy.
    """
    column = f"copy_n{n}"
    require(positions, "positions", "prompt_id", "position", "limit", "score", column)
    kept = positions[positions["limit"] >= span]
    return pd.DataFrame(
        {
            "prompt_id": kept["prompt_id"].to_numpy(),
            "position": kept["position"].to_numpy(),
            "accepted": [int(one[0]) if len(one) else 0 for one in kept[column]],
            "match_length": kept[f"match_length_n{n}"].to_numpy(),
            "score": kept["score"].to_numpy(float),
            "probe_on": kept["score"].to_numpy(float) >= tau,
        }
    )


def set_of(prompt_ids: pd.Series) -> pd.Series:
    """The benchmark a prompt's id names: what stands before its first slash."""
    return prompt_ids.astype(str).str.split("/").str[0]


def by_probe_state(copy_yield: pd.DataFrame, *, longest: int = SPAN) -> pd.DataFrame:
    """Accepted copy length with the probe on and off, for each set of prompts and for all.

    Returns:
        set, probe, n, prompts, mean and maximum (share that had all `longest` accepted), each with
        _low and _high, nothing (share that had nothing accepted).
    """
    require(copy_yield, "copy_yield", "prompt_id", "accepted", "probe_on")
    on = copy_yield["probe_on"].astype(bool)
    return _summaries(copy_yield, {"on": on, "off": ~on}, "probe", longest)


def by_path(steps: pd.DataFrame, *, longest: int = SPAN) -> pd.DataFrame:
    """Accepted length of drafting steps by path, for each set and for all; see `by_probe_state`."""
    require(steps, "steps", "prompt_id", "accepted", "path")
    present = [path for path in ("copy", "neural") if (steps["path"] == path).any()]
    paths = {path: steps["path"] == path for path in present}
    return _summaries(steps, paths, "path", longest)


def maximum_ratio(summary: pd.DataFrame) -> pd.Series:
    """For each set, how many times as often the whole copy is accepted with the probe on."""
    wide = summary.pivot(index="set", columns="probe", values="maximum")
    with np.errstate(divide="ignore", invalid="ignore"):
        return (wide["on"] / wide["off"].replace(0, np.nan)).rename("times as often")


def _summaries(
    table: pd.DataFrame, states: dict[str, pd.Series], column: str, longest: int
) -> pd.DataFrame:
    sets = table["set"] if "set" in table else set_of(table["prompt_id"])
    names = [ALL, *dict.fromkeys(sets)] if sets.nunique() > 1 else [ALL]
    rows = []
    for name in names:
        inside = pd.Series(True, index=table.index) if name == ALL else sets == name
        for state, chosen in states.items():
            rows.append({"set": name, column: state, **_summary(table[inside & chosen], longest)})
    return pd.DataFrame(rows)


def _summary(rows: pd.DataFrame, longest: int) -> dict[str, float]:
    accepted = rows["accepted"].to_numpy(float)
    groups, n_prompts = prompt_numbers(rows["prompt_id"])
    found: dict[str, float] = {"n": len(rows), "prompts": n_prompts}
    for name, values in (("mean", accepted), ("maximum", accepted >= longest)):
        if n_prompts > 1:
            estimate = interval(mean(groups, values, n_prompts), n_prompts)
        else:
            alone = values.mean() if len(values) else np.nan
            estimate = Estimate(float(alone), np.nan, np.nan)
        found |= estimate.columns(name)
    return {**found, "nothing": float((accepted == 0).mean()) if len(accepted) else np.nan}


"""The probe with a candidate in the context, score ≥ τ and below; and no candidate."""
"""What is counted: steps of the run, or every position of the texts."""


def both_paths(trace: CounterfactualTrace, setting: Setting) -> pd.DataFrame:
    """One row a position.

    Args:
        trace: a greedy counterfactual trace.
        setting: of SwitchSD; its D is how long a copy can be.

    Returns:
        set, prompt_id, position, step (whether a step of the run begins here), state (`STATES`),
        copy and neural (accepted lengths), whole (whether a copy of D tokens and the bonus fit what
        was left of the budget).

    Raises:
        SwitchSDError: another policy, or what cannot be replayed.
    """
    if setting.policy != "switchsd":
        raise SwitchSDError(f"both paths are of a run of switchsd, not of {setting.policy}")
    plan = Plan.of(trace, setting.build(trace))
    seen = plan.columns
    tau = plan.policy.gate.tau
    assert tau is not None
    on = seen.score >= tau
    step = np.zeros(len(trace), dtype=bool)
    step[play(plan).rows] = True
    return pd.DataFrame(
        {
            "set": trace.prompts["set"].to_numpy()[trace.prompt],
            "prompt_id": trace.prompts["prompt_id"].to_numpy()[trace.prompt],
            "position": trace.committed,
            "step": step,
            "state": np.where(seen.has_candidate, np.where(on, "on", "off"), "none"),
            "copy": plan.copy.accepted,
            "neural": plan.neural.accepted,
            "whole": trace.limit >= setting.D,
        }
    )


def accepted_by_state(paths: pd.DataFrame, max_copy: int = 20) -> pd.DataFrame:
    """How often each accepted length, for each path and state of the probe, both ways to count.

    Args:
        paths: `both_paths` of D = `max_copy`. Copies that the budget would have cut are left out.
        max_copy: longest copy.

    Returns:
        counted (`COUNTED`), path (copy, neural), state, accepted, count, share (of its state).
    """
    require(paths, "paths", "step", "state", "copy", "neural", "whole")
    tables = []
    for counted in COUNTED:
        rows = paths[paths["step"].astype(bool)] if counted == "steps" else paths
        for path in ("copy", "neural"):
            kept = rows[rows["whole"].astype(bool)] if path == "copy" else rows
            longest = max_copy if path == "copy" else int(paths["neural"].max())
            for state in STATES[: 2 if path == "copy" else 3]:
                lengths = kept.loc[kept["state"] == state, path]
                bins = range(max(longest, int(lengths.max()) if len(lengths) else 0) + 1)
                count = lengths.value_counts().reindex(bins, fill_value=0).to_numpy()
                tables.append(
                    pd.DataFrame(
                        {
                            "counted": counted,
                            "path": path,
                            "state": state,
                            "accepted": list(bins),
                            "count": count,
                            "share": count / max(1, count.sum()),
                        }
                    )
                )
    return pd.concat(tables, ignore_index=True)
