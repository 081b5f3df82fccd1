"""Figures of explanations: a table in, a Plotly figure out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import require
from .style import BLUE, DOTTED, GREY, ORANGE, VERMILLION, figure, whiskers
from .words import visible_plain

_DIVERGING = ((0.0, BLUE), (0.5, "rgba(128,134,142,0.12)"), (1.0, VERMILLION))
_SEQUENTIAL = ((0.0, "rgba(128,134,142,0.12)"), (1.0, BLUE))


def head_map(heads: pd.DataFrame, value: str, title: str) -> go.Figure:
    """Layer × head; blue below zero, vermillion above, or blue alone where nothing is negative.

    Args:
        heads: `layer`, `head`, `value`; heads that are missing stay blank.
        value: which column.
        title: what it is, on the colour bar.
    """
    require(heads, "heads", "layer", "head", value)
    grid = heads.pivot(index="layer", columns="head", values=value)
    z = grid.to_numpy(np.float64)
    finite = np.abs(z[np.isfinite(z)])
    size = float(finite.max()) if len(finite) else 1.0
    signed = bool((z < 0).any())
    drawn = figure("head", "layer")
    drawn.add_heatmap(
        x=grid.columns.tolist(),
        y=grid.index.tolist(),
        z=z,
        zmin=-size if signed else 0.0,
        zmax=size or 1.0,
        colorscale=_DIVERGING if signed else _SEQUENTIAL,
        colorbar={"title": {"text": title, "side": "right"}},
        hovertemplate=f"head %{{y}}.%{{x}}<br>{title} %{{z:.4f}}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    drawn.update_xaxes(dtick=1, showgrid=False)
    drawn.update_yaxes(showgrid=False)
    drawn.update_layout(height=140 + 14 * len(grid))
    return drawn


def waterfall(parts: pd.DataFrame, *, top: int = 12) -> go.Figure:
    """How the parts add up to the logit: the largest one by one, all others in one bar.

    Args:
        parts: `part` and `value`, in log-odds.
        top: parts drawn on their own, by size; the rest is summed.
    """
    require(parts, "parts", "part", "value")
    rows = waterfall_rows(parts, top=top)
    total = float(rows["value"].sum())
    drawn = figure("log-odds of copying", "")
    drawn.add_waterfall(
        orientation="h",
        y=[*rows["part"], "logit"],
        x=[*rows["value"], total],
        measure=["relative"] * len(rows) + ["total"],
        increasing={"marker": {"color": VERMILLION}},
        decreasing={"marker": {"color": BLUE}},
        totals={"marker": {"color": GREY}},
        connector={"line": {"color": GREY, "width": 1}},
        text=[f"{value:+.2f}" for value in rows["value"]] + [f"{total:+.2f}"],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    drawn.update_yaxes(autorange="reversed", type="category")
    drawn.update_layout(height=120 + 26 * (len(rows) + 1), showlegend=False)
    return drawn


def waterfall_rows(parts: pd.DataFrame, *, top: int = 12) -> pd.DataFrame:
    """The `top` parts with the largest |value|, greatest value first, then the sum of the others.

    Raises:
        SwitchSDError: top below 1.
    """
    if top < 1:
        raise SwitchSDError(f"top = {top}: show at least 1 part")
    order = parts["value"].abs().sort_values(ascending=False, kind="stable").index
    shown = parts.loc[order[:top], ["part", "value"]].sort_values("value", ascending=False)
    rest = parts.loc[order[top:], "value"]
    if len(rest):
        name = f"{len(rest)} other parts" if len(rest) > 1 else str(parts.loc[order[top], "part"])
        shown = pd.concat([shown, pd.DataFrame({"part": [name], "value": [float(rest.sum())]})])
    return shown.reset_index(drop=True)


def attention_to_source(
    sources: pd.DataFrame, tokens: pd.DataFrame, copy_source: int, *, column: str = "attention"
) -> go.Figure:
    """One head's attention, or its part of the logit, over the tokens it looks back at.

    Args:
        sources: one head's rows of `source_shares`.
        tokens: `position` and `text`.
        copy_source: position marked as the copy's source; −1 for none.
        column: `attention` or `value`.
    """
    require(sources, "sources", "source", column)
    if sources["source"].duplicated().any():
        raise SwitchSDError("the sources hold a token twice; give the rows of one head")
    texts = tokens.set_index("position")["text"]
    labels = [visible_plain(str(texts[source])) for source in sources["source"]]
    colours = np.where(sources["source"] == copy_source, VERMILLION, BLUE)
    words = {"attention": "attention", "value": "log-odds of copying"}
    drawn = figure("position", words.get(column, column))
    drawn.add_bar(
        x=sources["source"],
        y=sources[column],
        customdata=labels,
        marker={"color": colours.tolist(), "line": {"width": 0}},
        hovertemplate="%{x}: “%{customdata}”<br>%{y:.4f}<extra></extra>",
    )
    if copy_source >= 0:
        drawn.add_vline(x=copy_source, line={"color": ORANGE, "dash": "dot", "width": 1.5},
                        annotation_text="copy source")  # fmt: skip
    drawn.update_layout(showlegend=False)
    return drawn


def score_against_share(link: pd.DataFrame) -> go.Figure:
    """Every head: induction score along, share of the probe's separation up, with intervals.

    Args:
        link: `head_link.Link.table`.
    """
    require(link, "head_link", "layer", "head", "score", "share", "share_low", "share_high")
    drawn = figure("induction score (prefix matching)", "share of the probe's separation")
    drawn.add_scatter(
        x=link["score"],
        y=link["share"],
        customdata=[f"{layer}.{head}" for layer, head in zip(link["layer"], link["head"],
                                                            strict=True)],
        error_y=whiskers(link, "share", thickness=1, width=0),
        mode="markers",
        marker={"color": BLUE, "size": 7},
        hovertemplate="head %{customdata}<br>induction %{x:.3f}<br>share %{y:.3f}<extra></extra>",
    )  # fmt: skip
    drawn.add_hline(y=0, line=DOTTED)
    drawn.update_layout(showlegend=False)
    return drawn


def kind_shares(kinds: pd.DataFrame) -> go.Figure:
    """Share of the probe's separation that each kind of part carries, with intervals."""
    require(kinds, "kinds", "kind", "share", "share_low", "share_high")
    rows = kinds[kinds["share"].abs() > 0]
    drawn = figure("share of the probe's separation", "")
    drawn.add_bar(
        orientation="h",
        y=rows["kind"],
        x=rows["share"],
        marker={"color": BLUE},
        error_x=whiskers(rows, "share", width=None),
        hovertemplate="%{y}: %{x:.1%}<extra></extra>",
    )
    drawn.update_xaxes(tickformat=".0%")
    drawn.update_layout(height=120 + 40 * len(rows), showlegend=False)
    return drawn
