"""The stages of `switchsd explain study`: each makes its tables and sets its own metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...intervals import Statistic
from ...stages import Done, stage
from ..explain.attribution import layers_below
from ..explain.head_sets import Head, matched_random_heads, top_heads
from ..explain.head_table import INDUCTION
from ..explain.heads_run import explain_heads
from ..explain.reading import reading
from .ablation import ablate, ablation_row, pass_losses
from .copy_pairs import copy_pairs, kinds_pool
from .matched import (
    by_kind,
    logit_parts,
    matched_parts,
    matched_positions,
    matched_study,
    surface_score,
)
from .patching import TARGETS
from .patching_study import agreement, component_shares, patch_pairs, total_shares
from .steering import directions, site_spread, steer
from .study import ExplainStudy

_TOP = 20


def heads(study: ExplainStudy) -> None:
    """Head scores, exact attribution and the link between them, on the evaluation texts."""
    below = layers_below(study.probe.site)[0] * study.lens.n_heads
    explain_heads(
        study.bridge, study.probe, study.texts.corpus, study.run,
        k=max(1, min(HEADLINE, below // 2)), seed=study.config.seed, progress=study.progress,
    )  # fmt: skip
    study.run.update_metrics(
        served=study.served.describe(), probe=study.probe.describe(), benchmarks=_counts(study)
    )


def ablation(study: ExplainStudy) -> None:
    """Mean ablation of top and random heads: probe, copying, and loss elsewhere."""
    sets = ablation_sets(study)
    study.run.write_table("ablation_sets", sets_table(sets))
    clean_pass, [clean] = _passes(study, "none", 0, [[]])
    figures: dict[tuple[str, int], list[dict[str, Statistic]]] = {}
    digests = [clean_pass.digest]
    for done, ((kind, k), chosen) in enumerate(sets.items()):
        study.progress("ablations", done, len(sets))
        found, figures[kind, k] = _passes(study, kind, k, chosen)
        digests.append(found.digest)
    study.progress("ablations", len(sets), len(sets))
    n, seed = study.texts.n_prompts, study.config.seed
    below = layers_below(study.probe.site)[0]

    def compute() -> pd.DataFrame:
        nothing = {"heads": "none", "k": 0, "draws": 1, "below_site": 0.0}
        rows: list[dict[str, Any]] = [{**nothing, **ablation_row(clean, [clean], n, seed=seed)}]
        for (kind, k), ablated in figures.items():
            felt = [sum(layer < below for layer, _ in chosen) for chosen in sets[kind, k]]
            about = {"heads": kind, "k": k, "draws": len(ablated), "below_site": np.mean(felt)}
            against = figures.get((random_kind(kind), k))
            rows.append({**about, **ablation_row(clean, ablated, n, against=against, seed=seed)})
        return pd.DataFrame(rows)

    table = stage(study.run, "ablation", {"passes": digests}, compute).table
    study.run.update_metrics(ablation=table.to_dict("records"), headline_k=headline(study))


def patching(study: ExplainStudy) -> None:
    """Gradient patching of every unit, exact patching of the largest, and how they agree."""
    config, made = study.config, dict[str, pd.DataFrame]()

    def compute(which: str) -> Callable[[], pd.DataFrame]:
        def once() -> pd.DataFrame:
            if not made:
                pairs = copy_pairs(
                    study.texts, study.token_class,
                    kinds_pool(study.train.corpus, study.token_class),
                    breaks=study.breaks, seed=config.seed,
                )  # fmt: skip
                made["components"], made["units"] = patch_pairs(
                    study.lens, pairs, study.probe, limit=config.pairs, exact=config.exact_units,
                    progress=study.progress,
                )  # fmt: skip
            return made[which]

        return once

    key = {**study.key, "pairs": config.pairs, "exact": config.exact_units}
    components = stage(study.run, "patching_components", key, compute("components"))
    units = stage(study.run, "patching_units", key, compute("units"))
    shares = stage(
        study.run,
        "patching",
        {"components": components.digest},
        lambda: component_shares(components.table, seed=config.seed),
    ).table
    agreed = agreement(units.table, seed=config.seed)
    study.run.write_table("patching_agreement", agreed)
    largest = {
        target: _largest(shares[shares["target"] == target]).to_dict("records")
        for target in TARGETS
    }
    totals = total_shares(components.table, seed=config.seed)
    study.run.update_metrics(
        patching={
            "n_pairs": int(components.table["pair"].nunique()),
            "agreement": agreed.to_dict("records"),
            "totals": totals.to_dict("records"),
            "largest": largest,
        }
    )


def steering(study: ExplainStudy) -> None:
    """Adding the probe's direction, the difference of means, and random directions."""
    config = study.config
    spread = site_spread(study.lens, study.train, study.probe)
    vectors = directions(study.probe, spread, n_random=config.random_directions, seed=config.seed)
    table = stage(
        study.run,
        "steering",
        {
            **study.key, "prompts": config.steering_prompts, "doses": list(config.doses),
            "random": config.random_directions,
        },
        lambda: steer(
            study.lens, study.texts.some(config.steering_prompts), study.probe.site,
            config.doses, vectors, spread.std, seed=config.seed, progress=study.progress,
        ),
    ).table  # fmt: skip
    study.run.update_metrics(
        steering={
            "site": study.probe.site,
            "std": spread.std,
            "std_along_probe": spread.along_probe,
            "std_along_difference_of_means": spread.along_between,
            "rows": table.to_dict("records"),
        }
    )


def matched(study: ExplainStudy) -> None:
    """Intent or surface: positions that look the same, told apart by what the model does."""
    found = matched_positions(study.texts)
    clean = _passes(study, "none", 0, [[]])[0]
    key = {**study.key, "clean": clean.digest}

    def scores() -> pd.DataFrame:
        own = clean.table.sort_values("place").iloc[found.place]
        surface = surface_score(study.train, seed=study.config.seed)
        contestants = {
            "probe": own["probe"].to_numpy(),
            "surface model": surface.logit(study.texts.surface[found.place]),
            "model's own probability, one token later": own["candidate_log_prob"].to_numpy(),
        }
        return matched_study(found, contestants, seed=study.config.seed)

    @cache
    def values() -> tuple[pd.DataFrame, np.ndarray]:
        return logit_parts(
            study.lens, study.texts, found, reading(study.probe), study.probe.label_offset,
            progress=study.progress,
        )  # fmt: skip

    def parts() -> pd.DataFrame:
        return matched_parts(found, *values(), seed=study.config.seed)

    def kinds() -> pd.DataFrame:
        return matched_parts(found, *by_kind(*values()), seed=study.config.seed)

    table = stage(study.run, "matched", key, scores).table
    by_part = stage(study.run, "matched_parts", key, parts).table
    of_kinds = stage(study.run, "matched_kinds", key, kinds).table
    study.run.write_table("matched_strata", found.strata(study.texts))
    study.run.update_metrics(
        matched_study={
            "scores": table.to_dict("records"),
            "kinds": of_kinds.to_dict("records"),
            "largest": _largest(by_part).to_dict("records"),
        }
    )


STAGES: dict[str, Callable[[ExplainStudy], None]] = {
    "heads": heads,
    "ablation": ablation,
    "patching": patching,
    "steering": steering,
    "matched": matched,
}
"""Name → stage, in the order they run."""


def _largest(shares: pd.DataFrame) -> pd.DataFrame:
    """The rows of the largest shares, of either sign."""
    return shares.loc[shares["share"].abs().nlargest(_TOP).index]


def _passes(
    study: ExplainStudy, kind: str, k: int, sets: list[list[Head]]
) -> tuple[Done, list[dict[str, Statistic]]]:
    """The passes of some sets of heads, from disk if they were made, and their figures."""
    means = study.means
    done = stage(
        study.run,
        f"ablation/{kind}-{k}",
        {**study.key, "sets": [[list(head) for head in chosen] for chosen in sets]},
        lambda: ablate(
            study.lens, study.texts, study.probe, means, sets,
            what=f"{kind} {k}", progress=study.progress,
        ),
    )  # fmt: skip
    return done, pass_losses(study.texts, done.table)


def _counts(study: ExplainStudy) -> list[dict[str, Any]]:
    """What the evaluation texts are."""
    tokens = study.texts.tokens
    rows = []
    for name in study.texts.corpus["family"].unique():
        mine = tokens[tokens["family"] == name]
        rows.append(
            {
                "benchmark": str(name),
                "prompts": int(mine["prompt_id"].nunique()),
                "tokens": len(mine),
                "copied": float(mine["copied"].mean()),
                "offered": int(np.sum(study.texts.offered[mine.index])),
            }
        )
    return rows


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
