"""The heat map: at every position, what each path would have given if a step began there.

Read from a counterfactual trace's positions, or from a run's own `copy_yield`. No model library.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from ...runs import require
from ..figures.acceptance import HeatRow
from ..figures.words import policy_name

_COPY = re.compile(r"copy_n(\d+)")
_LONGEST_COPY, _LONGEST_CHAIN = 20, 10


def rows_of_trace(positions: pd.DataFrame) -> tuple[pd.DataFrame, list[HeatRow]]:
    """Score and accepted length of the newest copy candidate for each n, and of each draft.

    Args:
        positions: one prompt's table of a trace.

    Returns:
        The table by position (no candidate: no value), and its rows.
    """
    require(positions, "positions", "position", "score")
    columns: dict[str, np.ndarray] = {}
    rows = []
    if positions["score"].notna().any():
        columns["score"] = positions["score"].to_numpy(float)
        rows.append(HeatRow("probe score, %", "score", 1.0))
    for name in map(str, positions.columns):
        copied = _COPY.fullmatch(name)
        if copied:
            columns[name] = _newest(positions[name])
            rows.append(HeatRow(f"copy, n = {copied[1]}", name, _LONGEST_COPY))
        elif name.startswith("tree_") and name.count("_") == 3:
            columns[name] = positions[name].to_numpy(float)
            label = f"tree {'/'.join(name.split('_')[1:])}"
            rows.append(HeatRow(label, name, _LONGEST_CHAIN))
        elif name in ("eagle3", "sps") or f"{name}_proposed" in positions:  # or one's own
            columns[name] = positions[name].to_numpy(float)
            rows.append(HeatRow(policy_name(name), name, _LONGEST_CHAIN))
    return pd.DataFrame(columns, index=positions["position"].to_numpy()), rows


def rows_of_yield(copy_yield: pd.DataFrame) -> tuple[pd.DataFrame, list[HeatRow]]:
    """Score, accepted copy and match length of one prompt's rows of a run's `copy_yield`."""
    require(copy_yield, "copy_yield", "position", "score", "accepted", "match_length")
    table = copy_yield.drop_duplicates("position").set_index("position")
    kept = table[["score", "accepted", "match_length"]].astype(float)
    return kept, [
        HeatRow("probe score, %", "score", 1.0),
        HeatRow("copy accepted", "accepted", _LONGEST_COPY),
        HeatRow("match length", "match_length", _LONGEST_COPY),
    ]


def _newest(column: pd.Series) -> np.ndarray:
    return np.array([float(values[0]) if len(values) else np.nan for values in column])
