"""Figures of what a threshold does: confusion matrices, τ curves, ROC, calibration."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import require
from .curves import rates_at, roc_curve
from .probing import groups, set_name
from .style import BLUE, DASHED, INK, SERIES, VERMILLION, add_diagonal, add_series, figure

_RATES = "false positives %{x:.1%}<br>true positives %{y:.1%}"
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
        add_series(drawn, rows["tau"], rows[name], SERIES[place], "F1" if name == "f1" else name,
                   "τ %{x:.2f}: %{y:.3f}", mode="lines", width=2.5)  # fmt: skip
    drawn.add_vline(x=tau, line=DASHED)
    drawn.add_annotation(x=tau, y=0.03, yref="paper", text=f"τ = {tau:.3f}", showarrow=False,
                         xanchor="left", xshift=6, font={"color": INK})  # fmt: skip
    drawn.update_yaxes(range=[0, 1.02])
    return drawn


def roc_by_set(probe_test: pd.DataFrame) -> go.Figure:
    """ROC on each set (paper Fig. 6, right)."""
    require(probe_test, "probe_test", "set", "label", "score")
    drawn = figure("false positive rate", "true positive rate")
    add_diagonal(drawn, "chance")
    for place, (name, rows) in enumerate(groups(probe_test, "set")):
        curve = roc_curve(rows)
        thin = curve.iloc[np.unique(np.linspace(0, len(curve) - 1, 400).astype(int))]
        add_series(
            drawn, thin["false_positive_rate"], thin["true_positive_rate"],
            SERIES[place % len(SERIES)], set_name(name), f"{set_name(name)}<br>{_RATES}",
            mode="lines",
        )  # fmt: skip
    return _whole_square(drawn, 500)


def calibration(table: pd.DataFrame) -> go.Figure:
    """What the score says against the share that is copied, a line a set."""
    require(table, "calibration", "set", "mean_score", "share", "n")
    drawn = figure("mean score in the bin", "share of copied tokens")
    add_diagonal(drawn, "calibrated")
    for place, (name, rows) in enumerate(groups(table, "set")):
        add_series(
            drawn, rows["mean_score"], rows["share"], SERIES[place % len(SERIES)], set_name(name),
            "said %{x:.2f}, seen %{y:.2f}<br>%{customdata:,} tokens",
            mode="lines+markers", size=7, customdata=rows["n"],
        )  # fmt: skip
    drawn.update_layout(height=460)
    return drawn


def _of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = table[table["set"] == name]
    if rows.empty:
        raise SwitchSDError(f"the table has no set {name!r}; make the run again")
    return rows


def roc(probe_test: pd.DataFrame, tau: float) -> go.Figure:
    """ROC of the probe on test tokens, with its AUROC and the point where the gate sits."""
    from sklearn.metrics import auc  # as in `roc_curve`: the viewer starts without it

    curve = roc_curve(probe_test)
    at_tau = rates_at(probe_test, tau)
    drawn = figure(
        "false positive rate (not copied, called copy)", "true positive rate (copied, called copy)"
    )
    add_diagonal(drawn, "chance (AUROC 0.5)")
    false, true = curve["false_positive_rate"], curve["true_positive_rate"]
    add_series(
        drawn, false, true, (BLUE, "", "solid"),
        f"probe (AUROC {auc(false, true):.3f}, n = {len(probe_test):,} tokens)",
        f"score ≥ %{{customdata:.3f}}<br>{_RATES}",
        mode="lines", width=2.5, customdata=curve["threshold"],
    )  # fmt: skip
    add_series(drawn, [at_tau[0]], [at_tau[1]], (VERMILLION, "diamond", ""), f"τ = {tau:.3f}",
               f"τ<br>{_RATES}", size=13)  # fmt: skip
    return _whole_square(drawn, 460)


def _whole_square(drawn: go.Figure, height: int) -> go.Figure:
    drawn.update_xaxes(range=[-0.01, 1.01], tickformat=".0%")
    drawn.update_yaxes(range=[-0.01, 1.03], tickformat=".0%")
    return drawn.update_layout(height=height)
