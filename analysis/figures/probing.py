"""Figures of the probing studies: a table of `runs/probing` in, a Plotly figure out.

Intervals are 95 % by bootstrap over prompts where a table has them. Colour is never alone: markers,
dashes or patterns say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...data.benchmarks import BENCHMARKS
from ...runs import require
from .style import BLUE, DOTTED, GREY, SERIES, VERMILLION, add_series, figure, whiskers

_SET_NAMES = {
    "copy_diversity": "CopyDiversity (test)",
    "natural_text": "WikiText",
    "constructed_copy": "ConstructedCopy",
    **{name: row.words for name, row in BENCHMARKS.items()},
    "all": "all four benchmarks",
}

_LOWEST_SHOWN = 0.45  # just below chance; a lower estimate widens the axis


def scored_probe(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The probe whose scores a run's test tables hold: `site`, `tau` …; empty if it says none.

    A study scores with the probe of the paper's label, which need not be the one that is served.
    """
    found = metrics.get("label_probe") or metrics.get("probe")
    return dict(found) if isinstance(found, Mapping) else {}


def scored_tau(metrics: Mapping[str, Any]) -> float:
    """That probe's τ; 0.5 where the run says none."""
    tau = scored_probe(metrics).get("tau")
    return float(tau) if isinstance(tau, int | float) else 0.5


def set_name(name: str) -> str:
    """A corpus or evaluation set as people write it."""
    return _SET_NAMES.get(name, name)


def auroc_by_set(evaluation: pd.DataFrame) -> go.Figure:
    """AUROC of the label probe on each set, with intervals, with and without loop tokens."""
    require(evaluation, "evaluation", "set", "loops", "auroc", "auroc_low", "auroc_high")
    drawn = figure("", "AUROC")
    for place, (loops, rows) in enumerate(groups(evaluation, "loops")):
        _points(drawn, [set_name(s) for s in rows["set"]], rows, "auroc", place,
                name=f"{loops} loop tokens")  # fmt: skip
    _chance(drawn)
    return drawn


def given_match(evaluation: pd.DataFrame, *, loops: str = "with") -> go.Figure:
    """Where the context offers a copy: AUROC of each contestant for "≥ 3 accepted"."""
    require(evaluation, "evaluation", "set", "loops", "auroc_given_match")
    rows = evaluation[evaluation["loops"] == loops]
    drawn = figure("", "AUROC given a match")
    contestants = (
        ("surface baseline", "surface_"),
        ("probe of the paper's label", "label_"),
        ("served probe", ""),
        ("activations and surface", "both_"),
    )
    for place, (name, prefix) in enumerate(contestants):
        _points(drawn, [set_name(s) for s in rows["set"]], rows,
                f"{prefix}auroc_given_match", place, name=name)  # fmt: skip
    _chance(drawn)
    return drawn


def offsets(table: pd.DataFrame) -> go.Figure:
    """AUROC at label offsets 0, 1 and 2, a series a set."""
    require(table, "offsets", "offset", "set", "auroc", "auroc_low", "auroc_high")
    drawn = figure("label offset (0: the token read, 1: the anchor, 2: the first draft)", "AUROC")
    for place, (name, rows) in enumerate(groups(table, "set")):
        _points(
            drawn, rows["offset"].tolist(), rows, "auroc", place, name=set_name(name), line=True
        )
    drawn.update_xaxes(tickvals=[0, 1, 2])
    return drawn


def training_tokens(table: pd.DataFrame) -> go.Figure:
    """AUROC over the number of training tokens: mean of the seeds, and every seed as a point."""
    require(table, "training_tokens", "n_train", "auroc", "eval_auroc")
    drawn = figure("training tokens", "AUROC")
    for place, (column, name) in enumerate(
        (("auroc", "CopyDiversity (test)"), ("eval_auroc", "all four benchmarks"))
    ):
        mean = table.groupby("n_train")[column].mean()
        add_series(drawn, mean.index, mean, SERIES[place], name, "", mode="lines")
        add_series(
            drawn, table["n_train"], table[column], SERIES[place], f"{name}, one draw of prompts",
            "%{x:,} tokens: %{y:.3f}", size=7, showlegend=False,
        )  # fmt: skip
    drawn.update_xaxes(type="log")
    return drawn


def probe_families(table: pd.DataFrame) -> go.Figure:
    """AUROC of each probe family, a series a set."""
    require(table, "probe_families", "probe", "set", "auroc", "auroc_low", "auroc_high")
    drawn = figure("", "AUROC")
    for place, (name, rows) in enumerate(groups(table, "set")):
        labels = [probe.replace("_", " ") for probe in rows["probe"]]
        _points(drawn, labels, rows, "auroc", place, name=set_name(name))
    return drawn


def controls(table: pd.DataFrame) -> go.Figure:
    """AUROC on real labels beside the controls; the line is chance."""
    require(table, "controls", "control", "auroc", "auroc_low", "auroc_high")
    drawn = figure("", "AUROC")
    _points(drawn, table["control"].tolist(), table, "auroc", 0, name="AUROC")
    _chance(drawn)
    drawn.update_layout(showlegend=False)
    return drawn


def families(table: pd.DataFrame, *, loops: str = "with") -> go.Figure:
    """F1 of each CopyDiversity family beside always-copy's, most copied first."""
    require(table, "families", "family", "loops", "f1", "f1_always_copy", "prevalence")
    rows = table[table["loops"] == loops].sort_values("prevalence", kind="stable")
    drawn = figure("", "")
    for column, name, colour, symbol in (
        ("f1", "probe F1", BLUE, "circle"),
        ("f1_always_copy", "always-copy F1", GREY, "line-ns-open"),
        ("auroc", "AUROC", VERMILLION, "diamond"),
    ):
        add_series(
            drawn, rows[column], rows["family"], (colour, symbol, ""), name,
            f"%{{y}}<br>{name} %{{x:.3f}}<br>%{{customdata:.0%}} copied",
            marker={"line": {"width": 2}}, customdata=rows["prevalence"],
        )  # fmt: skip
    drawn.update_layout(height=120 + 22 * len(rows))
    drawn.update_xaxes(range=[-0.02, 1.02])
    return drawn


def tries(table: pd.DataFrame) -> go.Figure:
    """What each attempt at a better probe reached, overall and given a match."""
    require(table, "tries", "attempt", "auroc", "auroc_given_match")
    rows = table.iloc[::-1]
    drawn = figure("AUROC, all four benchmarks", "")
    for place, (column, name) in enumerate(
        (("auroc", "the paper's label"), ("auroc_given_match", "accepted ≥ 3, given a match"))
    ):
        add_series(drawn, rows[column], rows["attempt"], SERIES[place], name, "%{y}: %{x:.3f}")
    drawn.update_layout(height=140 + 24 * len(rows))
    return drawn


def _points(
    drawn: go.Figure,
    x: list,
    rows: pd.DataFrame,
    column: str,
    place: int,
    *,
    name: str,
    line: bool = False,
) -> None:
    """One series of estimates with their intervals, set a little apart from the others."""
    add_series(
        drawn, x, rows[column], SERIES[place % len(SERIES)], name, f"{name}<br>%{{x}}: %{{y:.3f}}",
        mode="lines+markers" if line else "markers", width=1.5,
        error_y=whiskers(rows, column) if f"{column}_low" in rows else None,
    )  # fmt: skip
    drawn.update_layout(scattermode="group", scattergap=0.5)
    lowest = float(rows.get(f"{column}_low", rows[column]).min()) - 0.03
    shown = drawn.layout.yaxis.range or (_LOWEST_SHOWN, 1.01)
    drawn.update_yaxes(range=[min(shown[0], lowest), 1.01])


def _chance(drawn: go.Figure) -> None:
    drawn.add_hline(y=0.5, line=DOTTED)


def groups(table: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows by the values of a column, in the order in which they first occur."""
    return [(str(name), table[table[column] == name]) for name in table[column].unique()]
