"""Figures of accepted lengths, summed up or by position: a DataFrame in, a Plotly figure out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from .curves import require
from .figure_style import BLUE, GREEN, VERMILLION, figure
from .token_charts import HeatRow

_STYLES = {
    "on": (VERMILLION, "circle"), "off": (BLUE, "square"),
    "copy": (VERMILLION, "circle"), "neural": (GREEN, "diamond"),
}  # fmt: skip
_NAMES = {"mean": "mean accepted length", "maximum": "share of full-length acceptances"}


def acceptance_by_set(summary: pd.DataFrame, measure: str = "mean") -> go.Figure:
    """Mean or maximum-length yield of each set, a series a state or path, with intervals."""
    column = "probe" if "probe" in summary else "path"
    low, high = f"{measure}_low", f"{measure}_high"
    require(summary, "acceptance", "set", column, "n", measure, low, high)
    drawn = figure("", _NAMES[measure])
    for state in summary[column].unique():
        rows = summary[summary[column] == state]
        colour, symbol = _STYLES.get(str(state), (BLUE, "circle"))
        named = f"probe {state}" if column == "probe" else str(state)
        drawn.add_scatter(
            x=rows["set"],
            y=rows[measure],
            customdata=rows["n"],
            name=f"{named} (n = {int(rows['n'].iloc[0]):,})",
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 11},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": rows[high] - rows[measure],
                "arrayminus": rows[measure] - rows[low],
                "thickness": 1.5,
                "width": 4,
            },
            hovertemplate=f"{named}, %{{x}}: %{{y:.3f}}<br>n = %{{customdata:,}}<extra></extra>",
        )
    drawn.update_layout(scattermode="group", scattergap=0.6, height=340)
    drawn.update_yaxes(rangemode="tozero", tickformat=".0%" if measure == "maximum" else "")
    return drawn


def paths_heatmap(table: pd.DataFrame, rows: Sequence[HeatRow]) -> go.Figure:
    """What each path would have given at every position, as a figure.

    Args:
        table: by position.
        rows: what is drawn; each on its own scale, from 0 to `top`.
    """
    values = [table[row.column].to_numpy(float) for row in rows]
    drawn = figure("position", "")
    drawn.add_heatmap(
        x=table.index.to_list(),
        y=[row.label for row in rows],
        z=[shown / row.top for shown, row in zip(values, rows, strict=True)],
        text=[[_said(v, row) for v in shown] for shown, row in zip(values, rows, strict=True)],
        zmin=0,
        zmax=1,
        colorscale="Cividis",
        colorbar={"title": "of the most", "thickness": 12, "tickformat": ".0%"},
        hovertemplate="%{y}, position %{x}<br>%{text}<extra></extra>",
    )
    drawn.update_xaxes(showgrid=False)
    drawn.update_yaxes(showgrid=False, autorange="reversed", ticklabelstandoff=6)
    drawn.update_layout(height=140 + 36 * len(rows))
    return drawn


def _said(value: float, row: HeatRow) -> str:
    if np.isnan(value):
        return "no candidate"
    return f"{value:.2f}" if row.top == 1 else f"{value:.0f}"
