"""Figures: a DataFrame in, a Plotly figure out; never runs a model.

Each draws a table of the demo run. Colour is never alone: dashes, markers or patterns say the
same.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import require
from .style import GREY, STREAM_STYLES, VERMILLION, add_series, figure
from .words import METRIC_NAMES, chosen_site, stream_name


def layer_sweep(
    sites: pd.DataFrame, metric: str = "auroc", *, chosen: str | None = None
) -> go.Figure:
    """The metric over layers, one line a stream; `chosen` is starred (default: the best site)."""
    require(sites, "sites", "site", "layer", "stream", metric)
    star = chosen_site(sites, metric, chosen)
    drawn = figure("layer", METRIC_NAMES.get(metric, metric))
    for stream, rows in _by_stream(sites):
        colour, dash, symbol = STREAM_STYLES.get(stream, (GREY, "solid", "circle"))
        name = stream_name(stream)
        add_series(
            drawn, rows["layer"], rows[metric], (colour, symbol, dash), name,
            f"{name}, layer %{{x}}<br>%{{y:.3f}}", mode="lines+markers", size=6,
        )  # fmt: skip
    drawn.add_scatter(
        x=[star["layer"]],
        y=[star[metric]],
        name=f"{'chosen' if chosen else 'best'}: layer {star['layer']}, "
        f"{stream_name(star['stream'])} ({star[metric]:.3f})",
        mode="markers",
        marker={"symbol": "star", "size": 18, "color": "#E69F00", "line": {"width": 1.5}},
        hoverinfo="skip",
    )
    return drawn


def site_heatmap(
    sites: pd.DataFrame, metric: str = "auroc", *, chosen: str | None = None
) -> go.Figure:
    """Layer × stream as a heat map (cividis); `chosen` (default: the best site) is boxed."""
    require(sites, "sites", "site", "layer", "stream", metric)
    star = chosen_site(sites, metric, chosen)
    streams = [stream for stream, _ in _by_stream(sites)]
    values = sites.pivot(index="stream", columns="layer", values=metric).reindex(streams)
    drawn = figure("layer", "")
    drawn.add_heatmap(
        x=values.columns.to_list(),
        y=[stream_name(stream) for stream in streams],
        z=values.to_numpy(),
        colorscale="Cividis",
        colorbar={"title": METRIC_NAMES.get(metric, metric), "thickness": 12, "outlinewidth": 0},
        hovertemplate="%{y}, layer %{x}<br>%{z:.3f}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    row = streams.index(star["stream"])
    drawn.add_shape(
        type="rect",
        x0=star["layer"] - 0.5,
        x1=star["layer"] + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"color": VERMILLION, "width": 3},
    )
    drawn.update_xaxes(showgrid=False)
    drawn.update_yaxes(showgrid=False, autorange="reversed", ticklabelstandoff=6)
    drawn.update_layout(height=120 + 48 * len(streams))
    return drawn


def _by_stream(sites: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    known = list(STREAM_STYLES)
    present = list(dict.fromkeys(sites["stream"]))
    order = [stream for stream in known if stream in present]
    order += [stream for stream in present if stream not in known]
    if sites.duplicated(["layer", "stream"]).any():
        raise SwitchSDError("the sites table holds a layer and stream twice; make the run again")
    return [(name, sites[sites["stream"] == name].sort_values("layer")) for name in order]
