"""Figures of traces: accidental repetitions (paper, Figure 2), and what both paths have accepted by
the probe's state (Figure 3). A DataFrame in, a Plotly figure out.
"""

from __future__ import annotations

import html

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .both_paths import COUNTED, STATES
from .curves import require
from .figure_style import BLUE, CLEAR, GREY, GRID, INK, VERMILLION, figure, template

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
                marker={"color": colour, "pattern": {"shape": pattern, "fgcolor": "#fff"}},
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
    drawn = figure("", "")
    cells = [
        examples["set"].tolist(),
        examples["match_length"].tolist(),
        ["–" if pd.isna(score) else f"{score:.2f}" for score in examples["score"]],
        *(
            [
                f"…{_shown(before)}<b>{_shown(after)}</b>…"
                for before, after in zip(examples[first], examples[second], strict=True)
            ]
            for first, second in (("earlier", "copied"), ("before", "text"))
        ),
    ]
    drawn.add_table(
        header={
            "values": [
                "set",
                "match",
                "score",
                "earlier, and what followed",
                "here, and what came",
            ],
            "align": "left",
            "fill": {"color": GRID},
            "line": {"color": GRID},
            "font": {"color": INK},
        },
        cells={
            "values": cells,
            "align": "left",
            "fill": {"color": CLEAR},
            "line": {"color": GRID},
            "font": {"color": INK},
            "height": 26,
        },
        columnwidth=[1, 0.6, 0.6, 4, 4],
    )
    drawn.update_layout(height=140 + 64 * len(examples))
    return drawn


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
            marker={"color": colour, "pattern": {"shape": pattern, "fgcolor": "#fff"}},
            hovertemplate="%{y:.1%} of %{customdata:,} copies<extra></extra>",
        )
    drawn.update_layout(barmode="group")
    drawn.update_yaxes(tickformat=".0%", range=[0, 1])
    return drawn


def _shown(text: str) -> str:
    return html.escape(text.replace("\n", "⏎"))
