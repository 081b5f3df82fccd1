"""Figures of what a threshold does: confusion matrices, τ curves, ROC, calibration."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import require
from .curves import area_under, rates_at, roc_curve
from .probing import SERIES, groups, set_name
from .style import BLUE, GREY, INK, VERMILLION, figure

_SHADES = [[0.0, "rgba(0,114,178,0.04)"], [1.0, "rgba(0,114,178,0.6)"]]  # text stays readable


def confusion_by_corpus(corpora: pd.DataFrame, *, loops: str = "with") -> go.Figure:
    """Confusion matrix of a probe from each training corpus (paper Fig. 4), rows summing to 1."""
    counts = ("true_positive", "false_positive", "false_negative", "true_negative")
    require(corpora, "corpora", "corpus", "loops", "f1", *counts)
    rows = corpora[corpora["loops"] == loops].reset_index(drop=True)
    drawn = figure("", "")
    width = 1 / len(rows)
    for place, row in enumerate(rows.to_dict("records")):
        corpus = set_name(row["corpus"]).removesuffix(" (test)")
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
            colorscale=_SHADES,
            zmin=0,
            zmax=1,
            showscale=False,
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
            hovertemplate="label %{y}, probe says %{x}: %{text}<extra></extra>",
            name=corpus,
        )
        start = place * width
        drawn.update_layout(
            {
                f"xaxis{axis}": {
                    "domain": [start, start + width * 0.82],
                    "anchor": f"y{axis}",
                    "title": {"text": f"{corpus}<br>F1 {row['f1']:.2f}, "
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
        colour, _, dash = SERIES[place]
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
    for place, (name, rows) in enumerate(groups(probe_test, "set")):
        colour, _, dash = SERIES[place % len(SERIES)]
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
    for place, (name, rows) in enumerate(groups(table, "set")):
        colour, symbol, dash = SERIES[place % len(SERIES)]
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


def _of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = table[table["set"] == name]
    if rows.empty:
        raise SwitchSDError(f"the table has no set {name!r}; make the run again")
    return rows


def roc(probe_test: pd.DataFrame, tau: float) -> go.Figure:
    """ROC of the probe on test tokens, with its AUROC and the point where the gate sits."""
    curve = roc_curve(probe_test)
    at_tau = rates_at(probe_test, tau)
    drawn = figure(
        "false positive rate (not copied, called copy)", "true positive rate (copied, called copy)"
    )
    drawn.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="chance (AUROC 0.5)",
        mode="lines",
        line={"color": GREY, "dash": "dot", "width": 1.5},
        hoverinfo="skip",
    )
    drawn.add_scatter(
        x=curve["false_positive_rate"],
        y=curve["true_positive_rate"],
        customdata=curve["threshold"],
        name=f"probe (AUROC {area_under(curve):.3f}, n = {len(probe_test):,} tokens)",
        mode="lines",
        line={"color": BLUE, "width": 2.5},
        hovertemplate="score ≥ %{customdata:.3f}<br>false positives %{x:.1%}"
        "<br>true positives %{y:.1%}<extra></extra>",
    )
    drawn.add_scatter(
        x=[at_tau[0]],
        y=[at_tau[1]],
        name=f"τ = {tau:.3f}",
        mode="markers",
        marker={"color": VERMILLION, "size": 13, "symbol": "diamond"},
        hovertemplate="τ<br>false positives %{x:.1%}<br>true positives %{y:.1%}<extra></extra>",
    )
    drawn.update_xaxes(range=[-0.01, 1.01], tickformat=".0%")
    drawn.update_yaxes(range=[-0.01, 1.03], tickformat=".0%")
    drawn.update_layout(height=460)
    return drawn
