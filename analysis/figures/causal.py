"""Figures of the causal tests: a table of the study in, a Plotly figure out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import require
from .style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
    VERMILLION,
    Look,
    add_diagonal,
    add_series,
    figure,
    hatched,
    whiskers,
)

REGIONS = ("source", "after_source", "copy", "reader", "elsewhere")

MLP = -1

MEASURE_NAMES = {
    "probe_auroc": "probe AUROC",
    "probe_auroc_given_match": "probe AUROC given a match",
    "copy_probability": "probability of the copied token",
    "accepted_copy_length": "accepted copy length",
    "loss_elsewhere": "loss elsewhere (nats a token)",
    "taken_up": "offered tokens taken up, of those the clean text has not",
    "taken_up_probability": "probability of those offered tokens",
    "kept": "offered tokens kept, of those the clean text has",
    "kept_probability": "probability of those kept",
}
"""What a pass is judged by, as people write it."""

HEAD_SETS: dict[str, tuple[str, Look]] = {
    "induction": ("top induction heads", (BLUE, "circle", "solid")),
    "attribution": ("top attribution heads", (VERMILLION, "square", "dash")),
    "induction_below": (
        "top induction heads below the probe's site",
        (SKY, "triangle-up", "solid"),
    ),
    "random": ("random heads, induction layers", (GREY, "diamond", "dot")),
    "random_induction_below": ("random heads, their layers", (PURPLE, "triangle-down", "dot")),
    "random_attribution": ("random heads, attribution layers", (ORANGE, "x", "dashdot")),
}

_REGION_COLOURS = dict(zip(REGIONS, (GREEN, SKY, ORANGE, BLUE, GREY), strict=True))

_REGION_PATTERNS = dict(zip(REGIONS, ("", "/", ".", "x", "-"), strict=True))

REGION_NAMES = {
    "source": "earlier occurrence",
    "after_source": "token copied from",
    "copy": "copy so far",
    "reader": "end of the copy",
    "elsewhere": "elsewhere",
}


def ablation_curve(ablation: pd.DataFrame, name: str) -> go.Figure:
    """One measure over the number of ablated heads, a series a kind of heads.

    Args:
        ablation: heads, k and the measure with `_low`, `_high`; a row `none` is the clean model.
        name: which measure.
    """
    require(ablation, "ablation", "heads", "k", name, f"{name}_low", f"{name}_high")
    drawn = figure("heads ablated", MEASURE_NAMES.get(name, name))
    for kind, (label, look) in HEAD_SETS.items():
        rows = ablation[ablation["heads"] == kind].sort_values("k")
        if rows.empty:
            continue
        add_series(
            drawn, rows["k"], rows[name], look, label, f"{label}, %{{x}} heads: %{{y:.3f}}",
            mode="lines+markers", error_y=whiskers(rows, name),
        )  # fmt: skip
    clean = ablation[ablation["heads"] == "none"]
    if len(clean):
        words = {"text": "nothing ablated", "font": {"color": GREY}}
        drawn.add_hline(y=float(clean[name].iloc[0]), line=DASHED, annotation=words)
    drawn.update_xaxes(type="log", tickvals=sorted(ablation.loc[ablation["k"] > 0, "k"].unique()))
    return drawn


def dose_response(steering: pd.DataFrame, name: str) -> go.Figure:
    """One measure over the dose, a series a direction; the band is the interval.

    Args:
        steering: direction, dose and the measure with `_low`, `_high`.
        name: which measure.
    """
    require(steering, "steering", "direction", "dose", name, f"{name}_low", f"{name}_high")
    drawn = figure("dose (standard deviations of the site)", MEASURE_NAMES.get(name, name))
    for place, direction in enumerate(steering["direction"].unique()):
        rows = steering[steering["direction"] == direction].sort_values("dose")
        draws = int(rows["draws"].max()) if "draws" in rows else 1
        label = f"{direction}, mean of {draws}" if draws > 1 else str(direction)
        add_series(
            drawn, rows["dose"], rows[name], SERIES[place % len(SERIES)], label,
            f"{label}, dose %{{x}}: %{{y:.3f}}",
            mode="lines+markers", error_y=whiskers(rows, name),
        )  # fmt: skip
    drawn.add_vline(x=0, line=DOTTED)
    return drawn


def patching_agreement(units: pd.DataFrame, target: str) -> go.Figure:
    """Exact effect of each patched unit over its gradient estimate; on the line they are equal.

    Args:
        units: target, layer, head, position, region, gradient, exact.
        target: `copy` or `probe`.
    """
    require(units, "patching_units", "target", "layer", "head", "region", "gradient", "exact")
    rows = units[units["target"] == target]
    if rows.empty:
        raise SwitchSDError(f"nothing was patched for {target!r}; make the run again")
    drawn = figure("effect by gradient (logits)", "effect by patching (logits)")
    for region in REGIONS:
        part = rows[rows["region"] == region]
        if part.empty:
            continue
        add_series(
            drawn, part["gradient"], part["exact"],
            (_REGION_COLOURS[region], SERIES[REGIONS.index(region)][1], ""),
            REGION_NAMES[region], "%{text}: gradient %{x:.2f}, exact %{y:.2f}",
            size=7, marker={"opacity": 0.8}, text=component_names(part),
        )  # fmt: skip
    add_diagonal(drawn, "equal", [float(rows["gradient"].min()), float(rows["gradient"].max())])
    return drawn


def patching_regions(shares: pd.DataFrame, target: str, *, count: int = 20) -> go.Figure:
    """The components that carry most of what the corruption took, by where they do it.

    Args:
        shares: `patching_study.component_shares`.
        target: `copy` or `probe`.
        count: components drawn.
    """
    columns = [f"at_{name}" for name in REGIONS]
    require(shares, "patching", "target", "layer", "head", "share", *columns)
    rows = shares[shares["target"] == target]
    rows = rows.iloc[np.argsort(-rows["share"].abs().to_numpy(), kind="stable")[:count]]
    rows = rows.sort_values("share", kind="stable")
    drawn = figure("share of what the corruption took, by gradient", "")
    for region, column in zip(REGIONS, columns, strict=True):
        drawn.add_bar(
            x=rows[column],
            y=component_names(rows),
            orientation="h",
            name=REGION_NAMES[region],
            marker=hatched(_REGION_COLOURS[region], _REGION_PATTERNS[region], fillmode="overlay"),
            hovertemplate=f"%{{y}}, {REGION_NAMES[region]}: %{{x:.3f}}<extra></extra>",
        )
    drawn.update_layout(barmode="relative", height=140 + 22 * len(rows))
    return drawn


def matched_scores(matched: pd.DataFrame) -> go.Figure:
    """AUROC of each score over all positions and within strata, where the surface says nothing."""
    require(matched, "matched", "score", "auroc", "auroc_within", "auroc_within_low")
    drawn = figure("AUROC: goes on to copy, or does not", "")
    rows = matched.iloc[::-1]
    for column, label, colour, symbol in (
        ("auroc", "all positions with a match", GREY, "diamond-open"),
        ("auroc_within", "matched positions", BLUE, "circle"),
    ):
        add_series(
            drawn, rows[column], rows["score"], (colour, symbol, ""), label,
            f"%{{y}}, {label}: %{{x:.3f}}",
            size=10, marker={"line": {"width": 2}}, error_x=whiskers(rows, column),
        )  # fmt: skip
    drawn.add_vline(x=0.5, line=DOTTED)
    drawn.update_layout(height=160 + 40 * len(rows))
    return drawn


def matched_part_shares(parts: pd.DataFrame, *, count: int = 20) -> go.Figure:
    """The parts that tell matched positions apart, with intervals; AUROC when hovered."""
    require(parts, "matched_parts", "part", "kind", "share", "share_low", "share_high")
    rows = parts.iloc[np.argsort(-parts["share"].abs().to_numpy(), kind="stable")[:count]]
    rows = rows.sort_values("share", kind="stable")
    drawn = figure("share of the probe's separation of matched positions", "")
    drawn.add_scatter(
        x=rows["share"],
        y=rows["part"],
        customdata=rows["auroc_within"],
        mode="markers",
        marker={
            "color": [BLUE if kind == "head" else PURPLE for kind in rows["kind"]],
            "symbol": ["circle" if kind == "head" else "square" for kind in rows["kind"]],
            "size": 9,
        },
        error_x=whiskers(rows, "share"),
        hovertemplate="%{y}: %{x:.3f}, AUROC alone %{customdata:.3f}<extra></extra>",
    )
    drawn.add_vline(x=0, line=DOTTED)
    drawn.update_layout(showlegend=False, height=140 + 22 * len(rows))
    return drawn


def component_name(layer: int, head: int) -> str:
    """`head 3.1` or `MLP 3`, as attribution names its parts."""
    return f"MLP {layer}" if head == MLP else f"head {layer}.{head}"


def component_names(units: pd.DataFrame) -> list[str]:
    """`component_name` of every row."""
    return [component_name(*unit) for unit in zip(units["layer"], units["head"], strict=True)]
