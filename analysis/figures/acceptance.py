"""Figures of accepted lengths, summed up or by position: a DataFrame in, a Plotly figure out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...runs import require
from .curves import PATHS, accepted_by_path, yield_by_probe_state
from .style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    PATH_COLOURS,
    PATH_PATTERNS,
    VERMILLION,
    add_series,
    figure,
    hatched,
    table_of_text,
    template,
    whiskers,
)
from .words import number

_STYLES = {
    "on": (VERMILLION, "circle"), "off": (BLUE, "square"),
    "copy": (VERMILLION, "circle"), "neural": (GREEN, "diamond"),
}  # fmt: skip

_FINE = {"size": 5, "solidity": 0.3, "fillmode": "overlay"}

_NAMES = {"mean": "mean accepted length", "maximum": "share of full-length acceptances"}


def acceptance_by_set(summary: pd.DataFrame, measure: str = "mean") -> go.Figure:
    """Mean or maximum-length yield of each set, a series a state or path, with intervals."""
    column = "probe" if "probe" in summary else "path"
    require(summary, "acceptance", "set", column, "n", measure, f"{measure}_low", f"{measure}_high")
    drawn = figure("", _NAMES[measure])
    for state in summary[column].unique():
        rows = summary[summary[column] == state]
        colour, symbol = _STYLES.get(str(state), (BLUE, "circle"))
        named = f"probe {state}" if column == "probe" else str(state)
        add_series(
            drawn, rows["set"], rows[measure], (colour, symbol, ""),
            f"{named} (n = {int(rows['n'].iloc[0]):,})",
            f"{named}, %{{x}}: %{{y:.3f}}<br>n = %{{customdata:,}}",
            size=11, customdata=rows["n"], error_y=whiskers(rows, measure, width=4),
        )  # fmt: skip
    drawn.update_layout(scattermode="group", scattergap=0.6, height=340)
    drawn.update_yaxes(rangemode="tozero", tickformat=".0%" if measure == "maximum" else "")
    return drawn


def paths_heatmap(table: pd.DataFrame, rows: Sequence[HeatRow]) -> go.Figure:
    """What each path would have given at every position, as a figure.

    Args:
        table: by position.
        rows: what is drawn; each on its own scale, from 0 to `top`.
    """
    values = [table[row.column].to_numpy(float) for row in rows]
    drawn = figure("position", "")
    drawn.add_heatmap(
        x=table.index.to_list(),
        y=[row.label for row in rows],
        z=[shown / row.top for shown, row in zip(values, rows, strict=True)],
        text=[[_said(v, row) for v in shown] for shown, row in zip(values, rows, strict=True)],
        zmin=0,
        zmax=1,
        colorscale="Cividis",
        colorbar={"title": "of the most", "thickness": 12, "tickformat": ".0%"},
        hovertemplate="%{y}, position %{x}<br>%{text}<extra></extra>",
    )
    drawn.update_xaxes(showgrid=False)
    drawn.update_yaxes(showgrid=False, autorange="reversed", ticklabelstandoff=6)
    drawn.update_layout(height=140 + 36 * len(rows))
    return drawn


def _said(value: float, row: HeatRow) -> str:
    if np.isnan(value):
        return "no candidate"
    return f"{value:.2f}" if row.top == 1 else f"{value:.0f}"


_STATES = {
    "on": ("probe on", VERMILLION, ""),
    "off": ("probe off", BLUE, "/"),
    "none": ("nothing to copy", GREY, "."),
}

_COUNTED = {"steps": "steps of the SwitchSD run", "positions": "every position of the texts"}

_PATHS = {"copy": "copy", "neural": "neural draft"}


def accepted_by_probe(shares: pd.DataFrame) -> go.Figure:
    """Share of accepted lengths with the probe on and off, each path, steps above positions.

    Args:
        shares: `both_paths.accepted_by_state`.
    """
    require(shares, "shares", "counted", "path", "state", "accepted", "count", "share")
    panels = [(counted, path) for counted in COUNTED for path in _PATHS]
    drawn = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=[f"{_PATHS[path]}, {_COUNTED[counted]}" for counted, path in panels],
        vertical_spacing=0.16,
        horizontal_spacing=0.08,
    )
    drawn.update_layout(template=template(), height=640, barmode="group")
    named: set[str] = set()
    for place, (counted, path) in enumerate(panels):
        mine = shares[(shares["counted"] == counted) & (shares["path"] == path)]
        for state in STATES:
            rows = mine[mine["state"] == state]
            if rows.empty:
                continue
            name, colour, pattern = _STATES[state]
            total = int(rows["count"].sum())
            drawn.add_bar(
                x=rows["accepted"],
                y=rows["share"],
                customdata=rows["count"],
                name=name,
                legendgroup=state,
                showlegend=state not in named,
                marker=hatched(colour, pattern, fgcolor="#fff"),
                hovertemplate=f"{name}: %{{x}} accepted<br>%{{y:.1%}}, %{{customdata}} of "
                f"{total:,}<extra></extra>",
                row=place // 2 + 1,
                col=place % 2 + 1,
            )
            named.add(state)
    drawn.update_xaxes(title_text="accepted tokens")
    drawn.update_yaxes(tickformat=".0%", rangemode="tozero")
    drawn.update_yaxes(title_text="share of its state", col=1)
    drawn.update_annotations(font={"size": 13, "color": INK})
    drawn.update_layout(legend={"y": 1.08})
    return drawn


def accidental_table(examples: pd.DataFrame) -> go.Figure:
    """Real repetitions that meant no copy: what followed earlier, and what the model wrote here.

    Args:
        examples: `repetitions.repetition_examples`.
    """
    columns = ("set", "match_length", "score", "earlier", "copied", "before", "text")
    require(examples, "examples", *columns)
    cells = [
        examples["set"].tolist(),
        examples["match_length"].tolist(),
        [number(score) for score in examples["score"]],
        *(
            [
                f"…{_shown(before)}<b>{_shown(after)}</b>…"
                for before, after in zip(examples[first], examples[second], strict=True)
            ]
            for first, second in (("earlier", "copied"), ("before", "text"))
        ),
    ]
    names = ["set", "match", "score", "earlier, and what followed", "here, and what came"]
    own = {"line": {"color": GRID}, "font": {"color": INK}}
    drawn = table_of_text(names, cells, [1, 0.6, 0.6, 4, 4],
                          {**own, "fill": {"color": GRID}}, {**own, "height": 26})  # fmt: skip
    return drawn.update_layout(height=140 + 64 * len(examples))


def attempts_in_vain(attempts: pd.DataFrame) -> go.Figure:
    """Share of copies of which nothing was accepted, by set, one bar a policy.

    Args:
        attempts: `claim_steps.copy_attempts`.
    """
    require(attempts, "attempts", "set", "policy", "attempts", "in_vain", "share")
    drawn = figure("", "copies in vain")
    styles = {"copyspec": (BLUE, "/", "CopySpec"), "switchsd": (VERMILLION, "", "SwitchSD")}
    for policy, rows in attempts.groupby("policy", sort=False):
        colour, pattern, name = styles.get(str(policy), (GREY, ".", str(policy)))
        drawn.add_bar(
            x=rows["set"],
            y=rows["share"],
            customdata=rows["attempts"],
            name=name,
            marker=hatched(colour, pattern, fgcolor="#fff"),
            hovertemplate="%{y:.1%} of %{customdata:,} copies<extra></extra>",
        )
    drawn.update_layout(barmode="group")
    drawn.update_yaxes(tickformat=".0%", range=[0, 1])
    return drawn


def _shown(text: str) -> str:
    return html.escape(text.replace("\n", "⏎"))


STATES = ("on", "off", "none")

COUNTED = ("steps", "positions")


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
            marker=hatched(colour, pattern, **_FINE),
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
            marker=hatched(PATH_COLOURS[path], PATH_PATTERNS[path], **_FINE),
            hovertemplate=f"{path}: %{{x}} accepted<br>%{{y:,}} steps<extra></extra>",
        )
    longest = int(table["accepted"].max())
    drawn.update_layout(barmode="stack", height=380, margin={"t": 76})
    drawn.update_xaxes(dtick=max(1, longest // 10), range=[-0.6, longest + 0.6])
    drawn.update_yaxes(rangemode="tozero")
    return drawn


@dataclass(frozen=True)
class HeatRow:
    """One row of the heat map.

    Attributes:
        label: what stands before it.
        column: of the table it is drawn from.
        top: the value that is drawn darkest.
    """

    label: str
    column: str
    top: float
