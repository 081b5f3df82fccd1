"""Figure of `acceptance.by_probe_state` and `by_path`: a DataFrame in, a Plotly figure out."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from .curves import require
from .figure_style import BLUE, GREEN, VERMILLION, figure

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
