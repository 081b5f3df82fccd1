"""How every figure looks: colours that colour-blind readers can tell apart, light or dark page.

Figures have no background of their own. Text and grid are a grey that reads on white and on black;
a page that knows better (the report, a figure's own page) overrides both with `FIGURE_CSS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go

# Okabe & Ito (2008), without the two (yellow, black) that vanish on a white or a dark page.
BLUE: Final = "#0072B2"
VERMILLION: Final = "#D55E00"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
GREY: Final = "#8A8F98"

INK: Final = "#7A7F87"
GRID: Final = "rgba(128,134,142,0.25)"
CLEAR: Final = "rgba(0,0,0,0)"
FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Source Sans 3", sans-serif'

PATH_COLOURS: Final = {"copy": VERMILLION, "neural": GREEN, "plain": GREY}
"""The path a step took."""

PATH_PATTERNS: Final = {"copy": "", "neural": "/", "plain": "."}
"""The same, for eyes that do not tell the colours apart."""

STREAM_STYLES: Final[dict[str, tuple[str, str, str]]] = {
    "hook_attn_out": (VERMILLION, "solid", "circle"),
    "hook_resid_mid": (BLUE, "dash", "square"),
    "hook_resid_post": (SKY, "dot", "diamond"),
    "hook_mlp_out": (GREEN, "dashdot", "triangle-up"),
    "hook_resid_pre": (PURPLE, "longdash", "x"),
    "attn.hook_z": (ORANGE, "longdashdot", "cross"),
}
"""Colour, dash and marker of each stream."""

Look = tuple[str, str, str]
"""Colour, marker and dash of a series."""

SERIES: Final[tuple[Look, ...]] = (
    (BLUE, "circle", "solid"),
    (VERMILLION, "square", "dash"),
    (GREEN, "diamond", "dot"),
    (PURPLE, "triangle-up", "dashdot"),
    (ORANGE, "x", "longdash"),
    (SKY, "cross", "longdashdot"),
)
"""How the series of a figure look, in order."""

DOTTED: Final = {"color": GREY, "dash": "dot", "width": 1.5}
DASHED: Final = {"color": GREY, "dash": "dash", "width": 1.5}
"""Lines to compare with: chance, zero; and a value that stands out."""

FIGURE_CONFIG: Final = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}
"""Plotly's options: no way to a web site, no tools that do nothing here."""

FIGURE_CSS: Final = """
.js-plotly-plot .main-svg text { fill: light-dark(#33383f, #c9ced6) !important; }
.js-plotly-plot .hoverlayer text { fill: #fff !important; }
.js-plotly-plot .gridlayer path { stroke: light-dark(#eceef1, #2a2f36) !important;
  stroke-opacity: 1 !important; }
"""
"""Sharper text and grid where the page follows the reader's light or dark setting."""


def template() -> go.layout.Template:
    """The layout every figure starts from."""
    axis = {
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "title": {"standoff": 10},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": INK},
            "title": {"font": {"size": 16}, "x": 0, "xref": "container", "xanchor": "left"},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "colorway": [BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY],
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "traceorder": "normal",
                "bgcolor": CLEAR,
            },
            "margin": {"l": 60, "r": 24, "t": 48, "b": 52},
            "hoverlabel": {
                "bgcolor": "#23272e",
                "bordercolor": "#23272e",
                "font": {"color": "#ffffff", "family": FONT, "size": 13},
            },
            "modebar": {"bgcolor": CLEAR, "color": GREY, "activecolor": BLUE},
            "bargap": 0.15,
            "height": 400,
        }
    )


def figure(x: str, y: str) -> go.Figure:
    """An empty figure in the house's style, with its axes named."""
    drawn = go.Figure()
    drawn.update_layout(template=template())
    drawn.update_xaxes(title_text=x)
    drawn.update_yaxes(title_text=y)
    return drawn


def add_series(
    drawn: go.Figure,
    x: Any,
    y: Any,
    look: Look,
    name: str,
    hover: str,
    *,
    mode: str = "markers",
    width: float = 2,
    size: float = 9,
    **more: Any,
) -> None:
    """One series of points, with a line where `mode` has lines.

    Args:
        drawn: gets the series.
        x, y: columns.
        look: of `SERIES`, or the series' own.
        name: in the legend.
        hover: Plotly's template for one point; empty: what Plotly says by itself.
        mode: Plotly's.
        width: of the line, pixels.
        size: of the markers, pixels.
        more: attributes of Plotly's scatter.
    """
    colour, symbol, dash = look
    if "lines" in mode:
        more["line"] = {"color": colour, "dash": dash, "width": width}
    if "markers" in mode:
        more["marker"] = {"color": colour, "symbol": symbol, "size": size} | more.get("marker", {})
    said = f"{hover}<extra></extra>" if hover else None
    drawn.add_scatter(x=x, y=y, name=name, mode=mode, hovertemplate=said, **more)


def whiskers(
    rows: pd.DataFrame, column: str, *, thickness: float = 1.5, width: float | None = 3
) -> dict[str, Any]:
    """Plotly's error bars of a column, from its interval in `<column>_low` and `<column>_high`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": rows[f"{column}_high"] - rows[column],
        "arrayminus": rows[column] - rows[f"{column}_low"],
        "thickness": thickness,
        "width": width,
    }


def add_diagonal(drawn: go.Figure, name: str, ends: Sequence[float] = (0, 1)) -> None:
    """A dotted line on which both axes say the same."""
    drawn.add_scatter(x=ends, y=ends, name=name, mode="lines", line=DOTTED, hoverinfo="skip")


def hatched(colour: str, pattern: str, **how: Any) -> dict[str, Any]:
    """Plotly's marker of a bar: a colour, and a pattern for eyes that do not tell colours apart."""
    return {"color": colour, "pattern": {"shape": pattern, **how}}


def table_of_text(
    names: Sequence[str],
    columns: Sequence[Sequence[Any]],
    widths: Sequence[float],
    header: dict[str, Any],
    cells: dict[str, Any],
) -> go.Figure:
    """Columns of text as a figure; `header` and `cells` add to Plotly's of both."""
    drawn = figure("", "")
    common = {"align": "left", "fill": {"color": CLEAR}}
    drawn.add_table(
        header={"values": names, **common, **header},
        cells={"values": columns, **common, **cells},
        columnwidth=widths,
    )
    return drawn
