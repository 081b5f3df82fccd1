"""What the study of explanations found, in plain sentences made from its metrics."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..errors import SwitchSDError
from .causal_figures import FIGURE_NAMES, HEAD_SETS

_ABLATED = ("probe_auroc", "copy_probability", "accepted_copy_length", "loss_elsewhere")
_NEEDED = ("kinds", "top_overlap", "rank_correlation", "ablation", "patching", "steering")


def headlines(metrics: dict[str, Any]) -> list[str]:
    """One sentence a question, each with its interval.

    Raises:
        SwitchSDError: a study that is not finished.
    """
    missing = [name for name in (*_NEEDED, "matched_study", "headline_k") if name not in metrics]
    if missing:
        raise SwitchSDError(f"the study is not finished ({missing[0]} is missing); run it again")
    return [
        carried_by(metrics),
        linked(metrics),
        *ablated(metrics),
        patched(metrics),
        steered(metrics),
        surface(metrics),
    ]


def carried_by(metrics: dict[str, Any]) -> str:
    """Heads against MLPs in the probe's separation of copy from other tokens."""
    kinds = {row["kind"]: row for row in metrics["kinds"]}
    parts = [
        f"{name} {with_interval(kinds[kind], 'share', percent=True)}"
        for kind, name in (
            ("head", "attention heads"), ("mlp", "MLPs"), ("embedding", "the embedding")
        )
        if kind in kinds
    ]  # fmt: skip
    return f"Of the probe's separation of copy tokens from others, {', '.join(parts)}."


def linked(metrics: dict[str, Any]) -> str:
    """Top induction heads and top attribution heads."""
    overlap, rho = metrics["top_overlap"], metrics["rank_correlation"]
    held = metrics["top_induction_share"]
    return (
        f"{overlap['overlap']} of the top {overlap['k']} induction heads are among the top "
        f"{overlap['k']} attribution heads (chance {overlap['chance']:.1f}); rank correlation over "
        f"the {overlap['heads']} heads below the probe's site {rho['value']:.2f} ({rho['low']:.2f} "
        f"to {rho['high']:.2f}). These induction heads hold {held['share']:.1%} of the separation "
        f"({held['low']:.1%} to {held['high']:.1%}), random heads of their layers "
        f"{held['random']:.1%} ({held['random_low']:.1%} to {held['random_high']:.1%})."
    )


def ablated(metrics: dict[str, Any]) -> list[str]:
    """Before and after ablating the headline number of heads, against random heads."""
    rows = {(row["heads"], row["k"]): row for row in metrics["ablation"]}
    k, clean = metrics["headline_k"], rows["none", 0]
    found = []
    for kind in ("induction", "induction_below", "attribution"):
        row = rows.get((kind, k))
        if row is None:
            continue
        said = [
            f"{FIGURE_NAMES[name]} {number(clean[name])} → {with_interval(row, name)}, less random "
            f"{with_interval(row, f'{name}_against_random')}"
            for name in _ABLATED
        ]
        label = HEAD_SETS[kind][0].removeprefix("top ")
        felt = row["below_site"]
        below = f" ({felt:g} of them below the probe's site)" if kind == "induction" else ""
        found.append(f"Top {k} {label} ablated{below}: {'; '.join(said)}.")
    return found


def patched(metrics: dict[str, Any]) -> str:
    """How far gradient patching can be believed."""
    rows = {row["target"]: row for row in metrics["patching"]["agreement"]}
    parts = [
        f"{with_interval(rows[target], 'correlation')} for {what}"
        for target, what in (("copy", "the copied token"), ("probe", "the probe"))
    ]
    shares = {(row["target"], row["kind"]): row for row in metrics["patching"]["totals"]}
    heads, mlps = (
        with_interval(shares["copy", kind], "share", percent=True) for kind in ("heads", "MLPs")
    )
    return (
        f"Gradient and exact patching correlate at {' and '.join(parts)} over the largest units of "
        f"{metrics['patching']['n_pairs']} pairs. By gradient, heads bring back {heads} of the "
        f"copied token's lead, MLPs {mlps} (units pass on what others say: no sum of 1)."
    )


def steered(metrics: dict[str, Any]) -> str:
    """Whether adding a direction makes the model take up what the context offers."""
    table = pd.DataFrame(metrics["steering"]["rows"])
    dose, parts = table["dose"].max(), []
    for name in table["direction"].unique():
        row = table[(table["direction"] == name) & (table["dose"] == dose)].iloc[0].to_dict()
        change = with_interval(row, "taken_up_change", percent=True)
        loss = with_interval(row, "loss_elsewhere_change")
        parts.append(f"{name} {change} (loss elsewhere {loss})")
    return (
        f"At dose {dose:g} the share of offered tokens taken up that the clean text has not "
        f"changes by: {', '.join(parts)}."
    )


def surface(metrics: dict[str, Any]) -> str:
    """Intent or surface."""
    rows = metrics["matched_study"]["scores"]
    first = rows[0]
    others = ", ".join(
        f"{row['score']} {with_interval(row, 'auroc_within')} (the probe's lead "
        f"{with_interval(row, 'first_gain')})"
        for row in rows[1:]
    )
    kinds = ", ".join(
        f"{names} {with_interval(row, 'share', percent=True)}"
        for row in metrics["matched_study"]["kinds"]
        if (names := {"head": "heads", "mlp": "MLPs"}.get(row["kind"]))
    )
    return (
        f"Where match length, token class and repetitions are equal ({first['n_positions']} "
        f"positions in {first['n_strata']} strata), AUROC for going on to copy: probe "
        f"{with_interval(first, 'auroc_within')}, {others}. Of the probe's difference there: "
        f"{kinds}."
    )


def with_interval(row: dict[str, Any], name: str, *, percent: bool = False) -> str:
    """A figure and its interval as words; a dash where it does not exist."""
    values = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
    if any(value is None or value != value for value in values):
        return "–"
    value, low, high = (f"{v:.1%}" if percent else f"{v:.3f}" for v in values)
    return f"{value} ({low} to {high})"


def number(value: float | None, digits: int = 3) -> str:
    """A figure as words; a dash where it does not exist."""
    return "–" if value is None or value != value else f"{value:.{digits}f}"
