"""The figures of `explain_heads` on disk: each as a page of its own and as the CSV it draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ..runs import Run, write_text
from .explain_figures import head_map, kind_shares, score_against_share, waterfall
from .figure_style import FIGURE_CONFIG
from .report_page import page, paragraph


def _head_shares(parts: pd.DataFrame) -> pd.DataFrame:
    heads = parts[parts["kind"] == "head"].rename(columns={"index": "head"})
    return heads[["layer", "head", "separation", "share", "share_low", "share_high"]]


def _as_parts(parts: pd.DataFrame) -> pd.DataFrame:
    return parts[["part", "separation"]].rename(columns={"separation": "value"})


FIGURES: dict[str, tuple[str, Callable[[pd.DataFrame], go.Figure], str]] = {
    "prefix-matching": (
        "head_scores",
        lambda table: head_map(table, "prefix_matching", "prefix matching"),
        "Attention mass on the tokens after every earlier occurrence of the query's token, on "
        "random tokens repeated four times.",
    ),
    "copy-source-attention": (
        "head_scores",
        lambda table: head_map(table, "copy_source", "copy-source attention"),
        "Attention mass, from a token of the completion, on the very position the copy path would "
        "copy the next token from.",
    ),
    "copying": (
        "head_scores",
        lambda table: head_map(table, "copying_embedding", "copying"),
        "Re Σλ / Σ|λ| of each head's OV circuit, through the embeddings: 1 copies, −1 suppresses.",
    ),
    "attribution-heads": (
        "attribution",
        lambda table: head_map(_head_shares(table), "share", "share"),
        "Share of the probe's separation of copy tokens from others that each head below the "
        "probe's site carries.",
    ),
    "attribution-kinds": (
        "kinds",
        kind_shares,
        "The same, summed over all heads, all MLPs and the embedding. 95 % intervals over prompts.",
    ),
    "attribution-waterfall": (
        "attribution",
        lambda table: waterfall(_as_parts(table), top=20),
        "The separation in log-odds, part by part: mean on copy tokens minus mean on the others.",
    ),
    "induction-and-attribution": (
        "head_link",
        score_against_share,
        "Every head below the probe's site: induction score against share of the separation. 95 % "
        "intervals over prompts.",
    ),
}
"""Name → (table, figure function, caption)."""


def write_head_figures(run: Run) -> list[Path]:
    """Write `figures/<name>.html` and `.csv` for every table of `explain_heads` the run has.

    Raises:
        SwitchSDError: a table that is damaged, or a folder that cannot be written.
    """
    folder, written = run.path / "figures", []
    write_text(folder / "plotly.min.js", get_plotlyjs())
    for name, (source, make, caption) in FIGURES.items():
        if not run.has_table(source):
            continue
        table = run.table(source)
        body = make(table).to_html(
            full_html=False, include_plotlyjs=False, div_id=name, config=FIGURE_CONFIG
        )
        path = folder / f"{name}.html"
        script = '<script src="plotly.min.js"></script>'
        write_text(path, page(name, body + paragraph(caption, "note"), script=script))
        write_text(folder / f"{name}.csv", table.to_csv(index=False))
        written.append(path)
    return written
