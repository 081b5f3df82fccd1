"""Any table as CSV or Parquet, any figure as a page of its own; written only when asked for."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def show_table(name: str, table: pd.DataFrame, *, caption: str = "", shown: int = 1000) -> None:
    """A table with its downloads; a long one is shown in part and downloaded whole."""
    if caption:
        st.caption(caption)
    st.dataframe(table.head(shown), hide_index=True, width="stretch")
    if len(table) > shown:
        st.caption(f"The first {shown:,} of {len(table):,} rows; a download holds all.")
    table_downloads(name, table)


def table_downloads(name: str, table: pd.DataFrame) -> None:
    """Buttons for CSV and Parquet."""
    words = f"Download the table of {name.replace('_', ' ')} as"
    with st.container(horizontal=True):
        _download(name, "csv", "text/csv", lambda: table.to_csv(index=False).encode(),
                  f"{words} CSV.")  # fmt: skip
        _download(name, "parquet", "application/vnd.apache.parquet", lambda: _parquet(table),
                  f"{words} Parquet.")  # fmt: skip


def show_figure(
    name: str, figure: go.Figure, table: pd.DataFrame | None = None, *, caption: str = ""
) -> None:
    """A figure, what it shows in words, and downloads of it and of the table behind it."""
    from ...analysis.figures.style import FIGURE_CONFIG

    st.plotly_chart(figure, config=FIGURE_CONFIG, key=f"figure:{name}")
    if caption:
        st.caption(caption)
    with st.container(horizontal=True):
        figure_download(name, lambda: figure, caption)
        if table is not None:
            table_downloads(name, table)


def figure_download(name: str, make: Callable[[], go.Figure], caption: str = "") -> None:
    """A button for a figure that is drawn when it is asked for."""
    _download(
        name, "html", "text/html", lambda: _page(name, make(), caption),
        "A page of its own that needs no network; the camera on the figure gives a PNG.",
    )  # fmt: skip


def _download(name: str, kind: str, mime: str, make: Callable[[], bytes], words: str) -> None:
    file = f"{_file(name)}.{kind}"
    st.download_button(
        file, make, file, mime, key=f"{kind}:{name}", on_click="ignore",
        icon=":material/download:", help=words,
    )  # fmt: skip


def _page(name: str, figure: go.Figure, caption: str) -> bytes:
    from ...analysis.pages.figure_files import figure_page, plotly_inside

    return figure_page(_file(name), figure, caption, plotly_inside()).encode()


def _parquet(table: pd.DataFrame) -> bytes:
    kept = io.BytesIO()
    table.to_parquet(kept, index=False)
    return kept.getvalue()


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "table"
