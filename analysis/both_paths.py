"""Both paths at every step of a run: what a copy and a neural draft would have had accepted there.

After the paper's Figure 3. The run is SwitchSD's, so a long copy is one step; `step` marks where
its steps begin, and every other position of the text is there too, for the version that counts
positions. Where the context offers nothing there is no copy to speak of: those rows are apart.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import SwitchSDError
from .curves import require
from .replay import play
from .replay_plan import Plan
from .replay_setting import Setting
from .traced import Traced

STATES = ("on", "off", "none")
"""The probe with a candidate in the context, score ≥ τ and below; and no candidate."""

COUNTED = ("steps", "positions")
"""What is counted: steps of the run, or every position of the texts."""


def both_paths(trace: Traced, setting: Setting) -> pd.DataFrame:
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
    on = seen.score >= plan.policy.gate.tau  # type: ignore[attr-defined]
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
