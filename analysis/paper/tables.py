"""The paper's Tables 1–3 from a benchmark's run folder, and how they look on a page."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go

from ...runs import Run, require
from ..bench.tables import gamma_table, throughput_table
from ..figures.style import table_of_text
from .finders import Found
from .style import INK, RULE

_ROW = 20  # CSS pixels of a row in print
_HEADER = 30
_MARGINS = 8


def throughput(number: int) -> Callable[[Run], Found | None]:
    """Finder of Table 1 (EAGLE-3) or 2 (a small draft model)."""

    def find(run: Run) -> Found | None:
        table = _table(run, f"table{number}")
        if table is None:
            return None
        prompts = table.groupby("set", sort=False)["n_prompts"].max()
        n = ", ".join(f"{name} {int(count)}" for name, count in prompts.items())
        sources = " and ".join(dict.fromkeys(table["source"]))
        says = (
            f"n = prompts: {n}; {sources}; speed over vanilla with its 95 % interval over prompts; "
            "copy and draft: % of steps / mean accepted without the bonus"
        )
        return Found(text_table(by_set(table)), table, says)

    return find


def lookahead(run: Run) -> Found | None:
    """Finder of Table 3."""
    table = _table(run, "table3")
    if table is None:
        return None
    says = (
        "γ at which a draft is fastest, replayed, with the speed over vanilla; chosen on the "
        f"prompts it is measured on, so no intervals; n = {len(table)} pairs of draft and set"
    )
    return Found(text_table(gamma_table(table)), table, says)


def by_set(table: pd.DataFrame) -> pd.DataFrame:
    """Table 1 or 2 for a page: one row a set and policy, the set named once.

    Args:
        table: `bench_tables.table1` or `table2`.

    Returns:
        set, policy, tokens/s, speed, copy, draft, as text.
    """
    require(table, "throughput", "set", "policy", "tokens_per_s", "speedup")
    parts = []
    for name in dict.fromkeys(table["set"]):
        wide = throughput_table(table[table["set"] == name])
        wide.columns = [str(column).removeprefix(f"{name} ") for column in wide.columns]
        named = [str(name), *[""] * (len(wide) - 1)]
        parts.append(wide.assign(set=named)[["set", *wide.columns]])
    return pd.concat(parts, ignore_index=True)


def text_table(rows: pd.DataFrame) -> go.Figure:
    """Rows of text as a figure, lines as in print."""
    require(rows, "printed", *rows.columns)
    widths = [max(len(str(name)), *(len(str(v)) for v in rows[name])) for name in rows]
    drawn = table_of_text(
        [f"<b>{name}</b>" for name in rows],
        [rows[name].tolist() for name in rows],
        [max(width, 4) for width in widths],
        {"line": {"color": INK, "width": 0.5}, "height": _HEADER},
        {"line": {"color": RULE, "width": 0.5}, "height": _ROW},
    )
    return drawn.update_layout(height=_MARGINS + _HEADER + _ROW * len(rows))


def _table(run: Run, name: str) -> pd.DataFrame | None:
    if not run.has_table(name):
        return None
    table = run.table(name)
    return table if len(table) else None
