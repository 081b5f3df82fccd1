"""Figures of the probing studies: a table of `runs/probing` in, a Plotly figure out.

Intervals are 95 % by bootstrap over prompts where a table has them. Colour is never alone: markers,
dashes or patterns say the same.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..errors import SwitchSDError
from .curves import require, roc_curve
from .figure_style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILLION, figure

_SET_NAMES = {
    "copy_diversity": "CopyDiversity (test)",
    "natural_text": "WikiText",
    "constructed_copy": "ConstructedCopy",
    "humaneval": "HumanEval",
    "math500": "MATH-500",
    "cnndm": "CNN/DM",
    "mtbench": "MT-Bench",
    "all": "all four benchmarks",
}
_SERIES = (
    (BLUE, "circle", "solid"),
    (VERMILLION, "square", "dash"),
    (GREEN, "diamond", "dot"),
    (PURPLE, "triangle-up", "dashdot"),
    (ORANGE, "x", "longdash"),
    (SKY, "cross", "longdashdot"),
)


def set_name(name: str) -> str:
    """A corpus or evaluation set as people write it."""
    return _SET_NAMES.get(name, name)


def auroc_by_set(evaluation: pd.DataFrame) -> go.Figure:
    """AUROC of the served probe on each set, with intervals, with and without loop tokens."""
    require(evaluation, "evaluation", "set", "loops", "auroc", "auroc_low", "auroc_high")
    drawn = figure("", "AUROC")
    for place, (loops, rows) in enumerate(_groups(evaluation, "loops")):
        _points(drawn, [set_name(s) for s in rows["set"]], rows, "auroc", place,
                name=f"{loops} loop tokens")  # fmt: skip
    _chance(drawn)
    return drawn


def given_match(evaluation: pd.DataFrame, *, loops: str = "with") -> go.Figure:
    """Where the context offers a copy: AUROC of surface, probe and both for "≥ 3 accepted"."""
    require(evaluation, "evaluation", "set", "loops", "auroc_given_match")
    rows = evaluation[evaluation["loops"] == loops]
    drawn = figure("", "AUROC given a match")
    contestants = (("surface baseline", "surface_"), ("probe", ""), ("both", "both_"))
    for place, (name, prefix) in enumerate(contestants):
        _points(drawn, [set_name(s) for s in rows["set"]], rows,
                f"{prefix}auroc_given_match", place, name=name)  # fmt: skip
    _chance(drawn)
    return drawn


def confusion_by_corpus(corpora: pd.DataFrame, *, loops: str = "with") -> go.Figure:
    """Confusion matrix of a probe from each training corpus (paper Fig. 4), rows summing to 1."""
    counts = ("true_positive", "false_positive", "false_negative", "true_negative")
    require(corpora, "corpora", "corpus", "loops", "f1", *counts)
    rows = corpora[corpora["loops"] == loops].reset_index(drop=True)
    drawn = figure("", "")
    width = 1 / len(rows)
    for place, row in enumerate(rows.to_dict("records")):
        copied = max(row["true_positive"] + row["false_negative"], 1)
        other = max(row["false_positive"] + row["true_negative"], 1)
        shares = [
            [row["true_negative"] / other, row["false_positive"] / other],
            [row["false_negative"] / copied, row["true_positive"] / copied],
        ]
        axis = "" if place == 0 else str(place + 1)
        drawn.add_heatmap(
            x=["not copy", "copy"],
            y=["not copied", "copied"],
            z=shares,
            text=[[f"{value:.0%}" for value in line] for line in shares],
            texttemplate="%{text}",
            colorscale="Cividis",
            zmin=0,
            zmax=1,
            showscale=False,
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
            hovertemplate="label %{y}, probe says %{x}: %{text}<extra></extra>",
            name=set_name(row["corpus"]),
        )
        start = place * width
        drawn.update_layout(
            {
                f"xaxis{axis}": {
                    "domain": [start, start + width * 0.82],
                    "anchor": f"y{axis}",
                    "title": {"text": f"{set_name(row['corpus'])}<br>F1 {row['f1']:.2f}, "
                                      f"AUROC {row['auroc']:.2f}"},
                    "showgrid": False,
                },
                f"yaxis{axis}": {
                    "anchor": f"x{axis}",
                    "autorange": "reversed",
                    "showticklabels": place == 0,
                    "showgrid": False,
                    "title": {"text": "label" if place == 0 else ""},
                },
            }
        )  # fmt: skip
    drawn.update_layout(height=340)
    return drawn


def tau_curves(tau_sweep: pd.DataFrame, *, tau: float, of: str = "all") -> go.Figure:
    """F1, precision and recall over τ (paper Fig. 6, left), with the τ that is served."""
    require(tau_sweep, "tau_sweep", "set", "tau", "f1", "precision", "recall")
    rows = _of(tau_sweep, of)
    drawn = figure("threshold τ", "")
    for place, name in enumerate(("f1", "precision", "recall")):
        colour, _, dash = _SERIES[place]
        drawn.add_scatter(
            x=rows["tau"],
            y=rows[name],
            name="F1" if name == "f1" else name,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertemplate="τ %{x:.2f}: %{y:.3f}<extra></extra>",
        )
    drawn.add_vline(x=tau, line={"color": GREY, "dash": "dash", "width": 1.5})
    drawn.add_annotation(x=tau, y=0.03, yref="paper", text=f"τ = {tau:.3f}", showarrow=False,
                         xanchor="left", xshift=6, font={"color": INK})  # fmt: skip
    drawn.update_yaxes(range=[0, 1.02])
    return drawn


def roc_by_set(probe_test: pd.DataFrame) -> go.Figure:
    """ROC on each set (paper Fig. 6, right)."""
    require(probe_test, "probe_test", "set", "label", "score")
    drawn = figure("false positive rate", "true positive rate")
    drawn.add_scatter(x=[0, 1], y=[0, 1], name="chance", mode="lines", hoverinfo="skip",
                      line={"color": GREY, "dash": "dot", "width": 1.5})  # fmt: skip
    for place, (name, rows) in enumerate(_groups(probe_test, "set")):
        colour, _, dash = _SERIES[place % len(_SERIES)]
        curve = roc_curve(rows)
        thin = curve.iloc[np.unique(np.linspace(0, len(curve) - 1, 400).astype(int))]
        drawn.add_scatter(
            x=thin["false_positive_rate"],
            y=thin["true_positive_rate"],
            name=set_name(name),
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate=f"{set_name(name)}<br>false positives %{{x:.1%}}"
            "<br>true positives %{y:.1%}<extra></extra>",
        )
    drawn.update_xaxes(range=[-0.01, 1.01], tickformat=".0%")
    drawn.update_yaxes(range=[-0.01, 1.03], tickformat=".0%")
    drawn.update_layout(height=500)
    return drawn


def calibration(table: pd.DataFrame) -> go.Figure:
    """What the score says against the share that is copied, a line a set."""
    require(table, "calibration", "set", "mean_score", "share", "n")
    drawn = figure("mean score in the bin", "share of copied tokens")
    drawn.add_scatter(x=[0, 1], y=[0, 1], name="calibrated", mode="lines", hoverinfo="skip",
                      line={"color": GREY, "dash": "dot", "width": 1.5})  # fmt: skip
    for place, (name, rows) in enumerate(_groups(table, "set")):
        colour, symbol, dash = _SERIES[place % len(_SERIES)]
        drawn.add_scatter(
            x=rows["mean_score"],
            y=rows["share"],
            customdata=rows["n"],
            name=set_name(name),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 7},
            hovertemplate="said %{x:.2f}, seen %{y:.2f}<br>%{customdata:,} tokens<extra></extra>",
        )
    drawn.update_layout(height=460)
    return drawn


def offsets(table: pd.DataFrame) -> go.Figure:
    """AUROC at label offsets 0, 1 and 2, a series a set."""
    require(table, "offsets", "offset", "set", "auroc", "auroc_low", "auroc_high")
    drawn = figure("label offset (0: the token read, 1: the anchor, 2: the first draft)", "AUROC")
    for place, (name, rows) in enumerate(_groups(table, "set")):
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
        colour, symbol, dash = _SERIES[place]
        mean = table.groupby("n_train")[column].mean()
        drawn.add_scatter(x=mean.index, y=mean, name=name, mode="lines",
                          line={"color": colour, "dash": dash, "width": 2})  # fmt: skip
        drawn.add_scatter(
            x=table["n_train"],
            y=table[column],
            name=f"{name}, one draw of prompts",
            mode="markers",
            showlegend=False,
            marker={"color": colour, "symbol": symbol, "size": 7},
            hovertemplate="%{x:,} tokens: %{y:.3f}<extra></extra>",
        )
    drawn.update_xaxes(type="log")
    return drawn


def probe_families(table: pd.DataFrame) -> go.Figure:
    """AUROC of each probe family, a series a set."""
    require(table, "probe_families", "probe", "set", "auroc", "auroc_low", "auroc_high")
    drawn = figure("", "AUROC")
    for place, (name, rows) in enumerate(_groups(table, "set")):
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
        drawn.add_scatter(
            x=rows[column],
            y=rows["family"],
            customdata=rows["prevalence"],
            name=name,
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 9, "line": {"width": 2}},
            hovertemplate=f"%{{y}}<br>{name} %{{x:.3f}}<br>%{{customdata:.0%}} copied"
            "<extra></extra>",
        )
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
        colour, symbol, _ = _SERIES[place]
        drawn.add_scatter(
            x=rows[column],
            y=rows["attempt"],
            name=name,
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 9},
            hovertemplate="%{y}: %{x:.3f}<extra></extra>",
        )
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
    colour, symbol, dash = _SERIES[place % len(_SERIES)]
    bars = {}
    if f"{column}_low" in rows:
        bars["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": rows[f"{column}_high"] - rows[column],
            "arrayminus": rows[column] - rows[f"{column}_low"],
            "thickness": 1.5,
            "width": 3,
        }
    drawn.add_scatter(
        x=x,
        y=rows[column],
        name=name,
        mode="lines+markers" if line else "markers",
        line={"color": colour, "dash": dash, "width": 1.5},
        marker={"color": colour, "symbol": symbol, "size": 9},
        hovertemplate=f"{name}<br>%{{x}}: %{{y:.3f}}<extra></extra>",
        **bars,
    )
    drawn.update_layout(scattermode="group", scattergap=0.5)


def _chance(drawn: go.Figure) -> None:
    drawn.add_hline(y=0.5, line={"color": GREY, "dash": "dot", "width": 1.5})


def _groups(table: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows by the values of a column, in the order in which they first occur."""
    return [(str(name), table[table[column] == name]) for name in table[column].unique()]


def _of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = table[table["set"] == name]
    if rows.empty:
        raise SwitchSDError(f"the table has no set {name!r}; make the run again")
    return rows
