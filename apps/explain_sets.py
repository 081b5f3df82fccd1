"""Which heads the study ablates: top ones of both rankings, and random ones of the same layers.

Rankings come from training text and from random repeats, never from the texts that judge.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from ..analysis.head_sets import Head, matched_random_heads, top_heads
from ..analysis.head_table import INDUCTION
from ..errors import SwitchSDError
from .explain_study import ExplainStudy

HEADLINE = 10
"""Heads in the comparison that the study's headline is about."""

Sets = dict[tuple[str, int], list[list[Head]]]
"""(kind of heads, k) → the sets ablated, one a draw."""


def ablation_sets(study: ExplainStudy) -> Sets:
    """The sets of every ablation.

    `induction` ranks all heads, `induction_below` (at the headline number) only those that the
    probe can feel. At the headline number each kind has `draws` sets of random heads of its own
    layers, elsewhere induction heads alone have half as many.

    Raises:
        SwitchSDError: more heads than leave enough to draw random ones from.
    """
    lens, config = study.lens, study.config
    by_attribution = study.attribution_heads()
    by_induction = study.run.table("head_scores")[["layer", "head", INDUCTION]]
    most = min(len(by_attribution), lens.n_layers * lens.n_heads // 2)
    ks = [k for k in config.ks if k <= most]
    if not ks:
        raise SwitchSDError(
            f"{min(config.ks)} heads are too many to ablate: at most {most} leave enough to draw "
            "random ones from"
        )
    sets: Sets = {}
    for k in ks:
        sets["induction", k] = [top_heads(by_induction, INDUCTION, k)]
        sets["attribution", k] = [top_heads(by_attribution, "share", k)]
    most_told = _nearest(ks)
    below = by_induction.merge(by_attribution[["layer", "head"]], on=["layer", "head"])
    felt = top_heads(below, INDUCTION, most_told)
    if felt != sets["induction", most_told][0]:
        sets["induction_below", most_told] = [felt]
    for kind, k in list(sets):
        if k != most_told and kind != "induction":
            continue
        draws = config.draws if k == most_told else max(1, config.draws // 2)
        sets[random_kind(kind), k] = matched_random_heads(
            sets[kind, k][0], lens.n_layers, lens.n_heads, draws=draws, seed=config.seed + k
        )
    return sets


def random_kind(kind: str) -> str:
    """The random heads that a kind of heads is held against."""
    return "random" if kind == "induction" else f"random_{kind}"


def headline(study: ExplainStudy) -> int:
    """The number of heads that was ablated which is nearest to `HEADLINE`."""
    return _nearest(study.run.table("ablation_sets")["k"].unique().tolist())


def sets_table(sets: Sets) -> pd.DataFrame:
    """heads, k, draw, layer, head: every head of every set."""
    rows = [
        {"heads": kind, "k": k, "draw": draw, "layer": layer, "head": head}
        for (kind, k), drawn in sets.items()
        for draw, members in enumerate(drawn)
        for layer, head in members
    ]
    return pd.DataFrame(rows)


def _nearest(ks: Iterable[int]) -> int:
    return min((int(k) for k in ks), key=lambda k: abs(k - HEADLINE))
