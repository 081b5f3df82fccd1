"""How figures look in a paper: column widths, one font that travels along, thin lines.

The figures are the house's own (`figures`, `probing_figures` …); only sizes and ink change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import plotly.graph_objects as go

from .font import FAMILY

COLUMN: Final = 291
"""Width of a column in CSS pixels, 96 to the inch: 7.7 cm, as in ACL's style."""

PAGE: Final = 605
"""Width of both columns: 16 cm."""

FALLBACK: Final = f'"{FAMILY}", "Liberation Sans", Arial, Helvetica, sans-serif'
INK: Final = "#1b1f24"
RULE: Final = "#d9dce1"

_FONT: Final = 9.5  # 7 points in print
_THINNER: Final = 0.6  # lines and marks, against the screen's
_DASHES: Final = {
    "dash": (4, 2.5),
    "dot": (1.2, 1.8),
    "dashdot": (4, 2, 1.2, 2),
    "longdash": (7, 2.5),
    "longdashdot": (7, 2, 1.2, 2),
}
"""In CSS pixels: Plotly's own do not get shorter with the line."""

_TINTS: Final[dict[str, Callable[[str], str]]] = {
    "/": lambda ink: _mixed(ink, 0.3),
    ".": lambda ink: "#ffffff",
}
"""What stands for a pattern in print: a light fill, or none, within an outline."""


def paper(drawn: go.Figure, *, width: int, height: int, scale: float = 1.0) -> go.Figure:
    """The same figure with the sizes of print; `drawn` itself stays as it is.

    Args:
        drawn: in the house's style.
        width: in CSS pixels, `COLUMN` or `PAGE`.
        height: in CSS pixels.
        scale: of everything; a screen shows it larger than paper.
    """
    made = go.Figure(drawn)
    thin = _THINNER * scale
    margin = {"l": 34, "r": 14, "t": 14, "b": 26}
    if all(trace.type == "table" for trace in made.data):
        margin = dict.fromkeys(margin, 2)  # what does not fit a table's height is not drawn
    made.update_layout(
        width=round(width * scale),
        height=round(height * scale),
        autosize=False,
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"family": FALLBACK, "size": _FONT * scale, "color": INK},
        margin={side: size * scale for side, size in margin.items()},
        legend={
            "font": {"size": _FONT * scale}, "tracegroupgap": 0,
            "itemsizing": "trace", "itemwidth": 30,
        },
    )  # fmt: skip
    axis = {
        "gridcolor": RULE,
        "linecolor": INK,
        "gridwidth": 0.5 * scale,
        "title": {"standoff": 4 * scale, "font": {"size": _FONT * scale}},
        "tickfont": {"size": 0.9 * _FONT * scale},
        "automargin": True,
    }
    made.update_xaxes(axis)
    made.update_yaxes(axis)
    made.update_annotations(font={"size": 0.95 * _FONT * scale, "color": INK})
    for shape in made.layout.shapes:
        shape.line.width = (shape.line.width or 2) * thin
        shape.line.dash = _dash(shape.line.dash, scale)
    for trace in made.data:
        _thin(trace, thin, scale)
    return made


def _thin(trace: go.Figure, thin: float, scale: float) -> None:
    if trace.type == "scatter":
        trace.line.width = (trace.line.width or 2) * thin
        trace.line.dash = _dash(trace.line.dash, scale)
        trace.marker.size = (trace.marker.size or 6) * thin
        for bars in (trace.error_x, trace.error_y):
            bars.thickness = (bars.thickness or 1.5) * thin
            bars.width = (bars.width if bars.width is not None else 4) * thin
    elif trace.type == "bar":
        if trace.marker.pattern.shape:  # Chrome writes patterns as pictures; print is vector
            ink = trace.marker.color
            trace.marker.line = {"color": ink, "width": 0.8 * scale}
            trace.marker.color = _TINTS[trace.marker.pattern.shape](ink)
            trace.marker.pattern = {"shape": ""}
    elif trace.type == "heatmap":
        trace.textfont = {"size": _FONT * scale, "color": INK}
        trace.colorbar.tickfont = {"size": 0.9 * _FONT * scale, "color": INK}
    elif trace.type == "table":
        for part in (trace.header, trace.cells):
            part.font = {"size": _FONT * scale, "color": INK}
            part.height = (part.height or 18) * scale


def _dash(dash: str | None, scale: float) -> str | None:
    return ",".join(f"{part * scale:g}px" for part in _DASHES[dash]) if dash in _DASHES else dash


def _mixed(ink: str, share: float) -> str:
    """A colour written as #rrggbb, thinned with white."""
    parts = (int(ink[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)
