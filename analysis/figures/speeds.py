"""Speed of policies over vanilla decoding, as a figure."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ...runs import require
from .style import BLUE, GREY, VERMILLION, figure
from .words import policy_name


def policy_speedups(decoding: pd.DataFrame) -> go.Figure:
    """Speed of each policy over vanilla's, slowest at the bottom; the line at 1 is vanilla."""
    require(decoding, "decoding", "policy", "speedup", "tokens_per_s")
    rows = decoding.sort_values("speedup", kind="stable")
    drawn = figure("speed over vanilla (×)", "")
    drawn.add_bar(
        x=rows["speedup"],
        y=[policy_name(policy) for policy in rows["policy"]],
        customdata=rows["tokens_per_s"],
        orientation="h",
        marker={"color": [VERMILLION if p == "switchsd" else BLUE for p in rows["policy"]]},
        text=[f"{value:.2f}×" for value in rows["speedup"]],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.3f}×<br>%{customdata:.1f} tokens/s<extra></extra>",
    )
    drawn.add_vline(x=1, line={"color": GREY, "dash": "dash", "width": 1.5})
    drawn.update_layout(height=120 + 44 * len(rows), showlegend=False, bargap=0.35)
    drawn.update_xaxes(rangemode="tozero")
    drawn.update_yaxes(showgrid=False, ticklabelstandoff=6)
    return drawn
