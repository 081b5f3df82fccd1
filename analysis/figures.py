"""Figures: a DataFrame in, a Plotly figure out; never runs a model.

Each draws a table of the demo run (see `switchsd.runs` and `switchsd.analysis.curves`). Colour is
never alone: dashes, markers or patterns say the same.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ..errors import SwitchSDError
from .curves import (
    PATHS,
    accepted_by_path,
    area_under,
    rates_at,
    require,
    roc_curve,
    yield_by_probe_state,
)
from .figure_style import (
    BLUE,
    GREY,
    INK,
    PATH_COLOURS,
    PATH_PATTERNS,
    STREAM_STYLES,
    VERMILLION,
    figure,
)
from .tables import METRIC_NAMES, chosen_site, policy_name, stream_name


def layer_sweep(
    sites: pd.DataFrame, metric: str = "auroc", *, chosen: str | None = None
) -> go.Figure:
    """The metric over layers, one line a stream; `chosen` is starred (default: the best site)."""
    require(sites, "sites", "site", "layer", "stream", metric)
    star = chosen_site(sites, metric, chosen)
    drawn = figure("layer", METRIC_NAMES.get(metric, metric))
    for stream, rows in _by_stream(sites):
        colour, dash, symbol = STREAM_STYLES.get(stream, (GREY, "solid", "circle"))
        drawn.add_scatter(
            x=rows["layer"],
            y=rows[metric],
            name=stream_name(stream),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 6},
            hovertemplate=f"{stream_name(stream)}, layer %{{x}}<br>%{{y:.3f}}<extra></extra>",
        )
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


def roc(probe_test: pd.DataFrame, tau: float) -> go.Figure:
    """ROC of the probe on test tokens, with its AUROC and the point where the gate sits."""
    curve = roc_curve(probe_test)
    at_tau = rates_at(probe_test, tau)
    drawn = figure(
        "false positive rate (not copied, called copy)", "true positive rate (copied, called copy)"
    )
    drawn.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="chance (AUROC 0.5)",
        mode="lines",
        line={"color": GREY, "dash": "dot", "width": 1.5},
        hoverinfo="skip",
    )
    drawn.add_scatter(
        x=curve["false_positive_rate"],
        y=curve["true_positive_rate"],
        customdata=curve["threshold"],
        name=f"probe (AUROC {area_under(curve):.3f}, n = {len(probe_test):,} tokens)",
        mode="lines",
        line={"color": BLUE, "width": 2.5},
        hovertemplate="score ≥ %{customdata:.3f}<br>false positives %{x:.1%}"
        "<br>true positives %{y:.1%}<extra></extra>",
    )
    drawn.add_scatter(
        x=[at_tau[0]],
        y=[at_tau[1]],
        name=f"τ = {tau:.3f}",
        mode="markers",
        marker={"color": VERMILLION, "size": 13, "symbol": "diamond"},
        hovertemplate="τ<br>false positives %{x:.1%}<br>true positives %{y:.1%}<extra></extra>",
    )
    drawn.update_xaxes(range=[-0.01, 1.01], tickformat=".0%")
    drawn.update_yaxes(range=[-0.01, 1.03], tickformat=".0%")
    drawn.update_layout(height=460)
    return drawn


def accepted_by_probe_state(copy_yield: pd.DataFrame, max_length: int = 20) -> go.Figure:
    """Probability of each accepted copy length, with the probe on and with it off.

    After the paper's Figure 3: at every position of `copy_yield` the copy path's accepted length is
    known, whichever path the policy took. Both states share the bins 0 … max_length.
    """
    table = yield_by_probe_state(copy_yield, max_length)
    on = copy_yield["probe_on"].astype(bool)
    drawn = figure("accepted copy length (tokens)", "share of positions")
    for state, rows, colour, pattern, height in (
        ("off", ~on, BLUE, "/", 0.84),
        ("on", on, VERMILLION, "", 0.96),
    ):
        drawn.add_bar(
            x=table["accepted"],
            y=table[state],
            customdata=table[f"{state}_count"],
            name=f"probe {state} (n = {int(rows.sum()):,})",
            marker={
                "color": colour,
                "pattern": {"shape": pattern, "size": 5, "solidity": 0.3, "fillmode": "overlay"},
            },
            hovertemplate=f"probe {state}: %{{x}} accepted<br>%{{y:.1%}}"
            "<br>%{customdata:,} positions<extra></extra>",
        )
        if rows.any():
            mean = float(copy_yield.loc[rows, "accepted"].mean())
            drawn.add_vline(x=mean, line={"color": colour, "dash": "dash", "width": 1.5})
            drawn.add_annotation(
                x=mean,
                y=height,
                yref="paper",
                text=f"mean with probe {state}: {mean:.2f}",
                xanchor="left",
                xshift=6,
                showarrow=False,
                font={"color": INK},
            )
    drawn.update_layout(barmode="group", bargap=0.2)
    drawn.update_xaxes(dtick=max(1, max_length // 10), range=[-0.6, max_length + 0.6])
    drawn.update_yaxes(tickformat=".0%", rangemode="tozero")
    return drawn


def accepted_histogram(steps: pd.DataFrame, max_length: int = 20) -> go.Figure:
    """Accepted length of one policy's steps, stacked by path; paths that never ran are left out."""
    table = accepted_by_path(steps, max_length)
    drawn = figure("accepted length (draft tokens)", "steps")
    for path in PATHS:
        rows = steps.loc[steps["path"] == path, "accepted"]
        if rows.empty:
            continue
        mean = "" if path == "plain" else f", mean {rows.mean():.2f}"  # plain steps draft nothing
        drawn.add_bar(
            x=table["accepted"],
            y=table[path],
            name=f"{path} (n = {len(rows):,}{mean})",
            marker={
                "color": PATH_COLOURS[path],
                "pattern": {
                    "shape": PATH_PATTERNS[path],
                    "size": 5,
                    "solidity": 0.3,
                    "fillmode": "overlay",
                },
            },
            hovertemplate=f"{path}: %{{x}} accepted<br>%{{y:,}} steps<extra></extra>",
        )
    longest = int(table["accepted"].max())
    drawn.update_layout(barmode="stack", height=380, margin={"t": 76})
    drawn.update_xaxes(dtick=max(1, longest // 10), range=[-0.6, longest + 0.6])
    drawn.update_yaxes(rangemode="tozero")
    return drawn


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


def _by_stream(sites: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    known = list(STREAM_STYLES)
    present = list(dict.fromkeys(sites["stream"]))
    order = [stream for stream in known if stream in present]
    order += [stream for stream in present if stream not in known]
    if sites.duplicated(["layer", "stream"]).any():
        raise SwitchSDError("the sites table holds a layer and stream twice; make the run again")
    return [(name, sites[sites["stream"] == name].sort_values("layer")) for name in order]
