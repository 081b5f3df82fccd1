"""Figures on pages and on disk: one writer for the reports, the viewer and the paper.

<folder>/<name>.html   a page of its own; all of a folder share its plotly.min.js
<folder>/<name>.csv    what is drawn
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ...runs import Run, write_text
from ..figures.style import FIGURE_CONFIG
from .page import page, paragraph

BESIDE = '<script src="plotly.min.js"></script>'
"""plotly.js for a page that lies beside it."""


@dataclass(frozen=True)
class Drawn:
    """A figure, the table it shows, and the words below it."""

    figure: go.Figure
    table: pd.DataFrame
    caption: str


@dataclass(frozen=True)
class Recipe:
    """A figure that any run with a certain table has.

    Attributes:
        table: of the run.
        draw: the figure of that table.
        caption: the words below it.
        part: of the viewer's page that shows it; empty: only on disk.
    """

    table: str
    draw: Callable[[pd.DataFrame], go.Figure]
    caption: str
    part: str = ""

    def of(self, run: Run) -> Drawn:
        """Draw it.

        Raises:
            SwitchSDError: a table that is missing or damaged.
        """
        table = run.table(self.table)
        return Drawn(self.draw(table), table, self.caption)


def plotly_inside() -> str:
    """plotly.js for a page that asks for nothing."""
    return f"<script>{get_plotlyjs()}</script>"


def figure_div(name: str, figure: go.Figure) -> str:
    """The figure as HTML for a page that has plotly.js; `name` is the element's id."""
    return figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config=FIGURE_CONFIG
    )


def embedded(name: str, drawn: Drawn) -> str:
    """The figure for a report, with its words and the name of its file."""
    return (
        f'<figure class="{name}">{figure_div(name, drawn.figure)}<figcaption>'
        f"{html.escape(drawn.caption)} <code>figures/{name}.csv</code></figcaption></figure>"
    )


def figure_page(name: str, figure: go.Figure, caption: str, script: str = BESIDE) -> str:
    """A page of the figure alone; `script` brings plotly.js."""
    below = paragraph(caption, "note") if caption else ""
    return page(name, figure_div(name, figure) + below, script=script)


def write_figure_files(folder: Path, figures: Mapping[str, Drawn]) -> list[Path]:
    """Write page and CSV of every figure, and plotly.js beside them; the pages' paths.

    Raises:
        SwitchSDError: a folder that cannot be written.
    """
    write_text(folder / "plotly.min.js", get_plotlyjs())
    pages = []
    for name, drawn in figures.items():
        pages.append(folder / f"{name}.html")
        write_text(pages[-1], figure_page(name, drawn.figure, drawn.caption))
        write_text(folder / f"{name}.csv", drawn.table.to_csv(index=False))
    return pages
