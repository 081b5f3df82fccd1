"""The lab's studies by name: each makes its tables in the run folder and sets its own metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from ...stages import stage
from ..training.probing_set import ProbingSet
from .controls import control_study, leakage_study
from .evaluation import (
    Scored,
    calibration_table,
    family_table,
    pool,
    score_set,
    score_table,
    scores,
    tau_table,
)
from .lab import COPY_DIVERSITY, Lab
from .match_study import fit_match_models, match_scores, match_table
from .studies import corpora_study, offset_study, probe_family_study, training_tokens_study
from .tries import default_attempts, tries_study

TOKEN_SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)
_HEADLINE = (
    *("set", "auroc", "auroc_low", "auroc_high", "f1", "f1_low", "f1_high", "f1_always_copy"),
    *("auroc_given_match", "label_auroc_given_match", "surface_auroc_given_match"),
    *("both_auroc_given_match", "gain_given_match", "gain_given_match_low"),
    *("gain_given_match_high", "label_gain_given_match", "label_gain_given_match_low"),
    *("label_gain_given_match_high", "both_gain_given_match", "both_gain_given_match_low"),
    *("both_gain_given_match_high",),
    *("prevalence", "loop_share", "average_precision", "brier", "n_tokens", "n_prompts"),
    *("n_match", "match_prevalence"),
)


def layers(lab: Lab) -> None:
    """Layer × stream (paper Fig. 5), and the choice of the probes."""
    table = lab.layers.table
    lab.run.update_metrics(
        served=lab.served.describe(),
        label_probe=lab.label_probe.describe(),
        sites=table[["site", "layer", "stream", "f1", "auroc"]].to_dict("records"),
        selection=lab.selection.table.to_dict("records"),
    )
    lab.save_probes()


def evaluation(lab: Lab) -> None:
    """The benchmarks: the label probe overall, all contestants given a match, loops in and out."""
    done = stage(
        lab.run,
        "evaluation",
        {**lab.chosen_key(), "sets": [lab.digest_of(s) for s in lab.evaluation.values()]},
        lambda: _evaluation_table(lab),
    )
    table = done.table
    for loops, key in (("with", "evaluation"), ("without", "evaluation_without_loops")):
        rows = table[table["loops"] == loops]
        lab.run.update_metrics(**{key: rows[list(_HEADLINE)].to_dict("records")})


def families(lab: Lab) -> None:
    """Each CopyDiversity family's test prompts."""

    def compute() -> pd.DataFrame:
        scored, label = _own_test(lab), lab.label_probe
        parts = []
        for loops, part in (("with", scored), ("without", scored.without_loops())):
            parts.append(family_table(part, label.fitted.tau).assign(loops=loops))
        return pd.concat(parts, ignore_index=True)

    table = stage(lab.run, "families", lab.chosen_key(), compute).table
    rows = table[table["loops"] == "with"].drop(columns="loops")
    lab.run.update_metrics(families=rows.to_dict("records"))


def thresholds(lab: Lab) -> None:
    """τ sweep, ROC and calibration (paper Fig. 6) on CopyDiversity test and on the benchmarks."""
    made_from = {
        **lab.chosen_key(),
        "sets": [lab.digest_of(s) for s in lab.evaluation.values()],
    }

    def each(make: Callable[[Scored], pd.DataFrame]) -> Callable[[], pd.DataFrame]:
        def compute() -> pd.DataFrame:
            return pd.concat(
                [make(part).assign(set=name) for name, part in _scored(lab).items()],
                ignore_index=True,
            )

        return compute

    stage(lab.run, "probe_test", made_from, each(score_table))
    stage(lab.run, "tau_sweep", made_from, each(tau_table))
    stage(lab.run, "calibration", made_from, each(calibration_table))


def offsets(lab: Lab) -> None:
    """Label offsets 0, 1, 2 at the label probe's site."""
    table = stage(
        lab.run,
        "offsets",
        {**lab.chosen_key(), "sets": [lab.digest_of(s) for s in lab.evaluation.values()]},
        lambda: offset_study(
            lab.full_set, lab.evaluation, lab.label_probe.site, seed=lab.config.seed
        ),
    ).table
    lab.run.update_metrics(offsets=table.to_dict("records"))


def corpora(lab: Lab) -> None:
    """Training-corpus ablation on MT-Bench (paper Fig. 4)."""
    sets = [lab.full_set, lab.given_set("natural_text"), lab.given_set("constructed_copy")]
    mtbench = lab.evaluation["mtbench"]
    table = stage(
        lab.run,
        "corpora",
        {**lab.chosen_key(), "sets": [lab.digest_of(s) for s in (*sets, mtbench)]},
        lambda: corpora_study(
            sets, mtbench, lab.label_probe.site, offset=lab.label_probe.offset, seed=lab.config.seed
        ),
    ).table
    rows = table[table["loops"] == "with"].drop(columns="loops")
    lab.run.update_metrics(
        corpora=rows.to_dict("records"),
        corpora_without_loops=table[table["loops"] == "without"]
        .drop(columns="loops")
        .to_dict("records"),
    )


def training_tokens(lab: Lab) -> None:
    """How many training tokens a probe needs."""
    table = stage(
        lab.run,
        "training_tokens",
        {
            **lab.chosen_key(),
            "sizes": list(TOKEN_SIZES),
            "sets": [lab.digest_of(s) for s in lab.evaluation.values()],
        },
        lambda: training_tokens_study(
            lab.full_set,
            lab.evaluation,
            lab.label_probe.site,
            offset=lab.label_probe.offset,
            sizes=(*TOKEN_SIZES, len(lab.full_set.tokens)),
        ),
    ).table
    lab.run.update_metrics(training_tokens=table.to_dict("records"))


def probe_families(lab: Lab) -> None:
    """Logistic regression, difference of means, LDA and MLP at the label probe's site."""
    table = stage(
        lab.run,
        "probe_families",
        {**lab.chosen_key(), "sets": [lab.digest_of(s) for s in lab.evaluation.values()]},
        lambda: probe_family_study(
            lab.full_set,
            lab.evaluation,
            lab.label_probe.site,
            offset=lab.label_probe.offset,
            seed=lab.config.seed,
        ),
    ).table
    lab.run.update_metrics(probe_families=table.to_dict("records"))


def controls(lab: Lab) -> None:
    """Shuffled labels, random label per token type, random-weights model, and the leakage test."""
    data, random_set, label = lab.sweep_set, lab.random_model_set, lab.label_probe
    made_from = {
        **lab.chosen_key(),
        "sets": [lab.digest_of(data), lab.digest_of(random_set)],
    }
    table = stage(
        lab.run,
        "controls",
        made_from,
        lambda: control_study(
            data, random_set, label.site, offset=label.offset, seed=lab.config.seed
        ),
    ).table
    leakage = stage(
        lab.run,
        "leakage",
        made_from,
        lambda: leakage_study(data, label.site, offset=label.offset),
    ).table
    by_split = leakage.groupby("split")["auroc"].mean()
    lab.run.update_metrics(
        controls=table.to_dict("records"),
        leakage_auroc=float(by_split["prompt"]),
        leakage_auroc_token_split=float(by_split["token"]),
        leakage_seeds=int(leakage["seed"].nunique()),
    )


def tries(lab: Lab) -> None:
    """What else was tried for a better probe."""
    attempts = default_attempts(lab.label_probe.site, lab.candidates)
    table = stage(
        lab.run,
        "tries",
        {
            **lab.chosen_key(),
            "sets": [lab.digest_of(s) for s in lab.evaluation.values()],
            "attempts": [str(attempt) for attempt in attempts],
        },
        lambda: tries_study(
            lab.full_set, lab.evaluation, attempts, seed=lab.config.seed, progress=lab.progress
        ),
    ).table
    lab.run.update_metrics(tries=table.to_dict("records"))


STUDIES: dict[str, Callable[[Lab], None]] = {
    "layers": layers,
    "evaluation": evaluation,
    "families": families,
    "thresholds": thresholds,
    "offsets": offsets,
    "corpora": corpora,
    "controls": controls,
    "training-tokens": training_tokens,
    "probe-families": probe_families,
    "tries": tries,
}
"""Name → study, in the order `--all` runs them."""


def _own_test(lab: Lab) -> Scored:
    data, label = lab.full_set, lab.label_probe
    return score_set(data, label.fitted.probe, label.site, data.rows("test"), lag=label.offset)


def _scored(lab: Lab) -> dict[str, Scored]:
    """The label probe's scores on CopyDiversity test, every benchmark, and all benchmarks."""
    label = lab.label_probe
    there = {
        name: score_set(data, label.fitted.probe, label.site, data.rows("test"), lag=label.offset)
        for name, data in lab.evaluation.items()
    }
    return {COPY_DIVERSITY: _own_test(lab), **there, "all": pool(list(there.values()))}


def _evaluation_table(lab: Lab) -> pd.DataFrame:
    """The label probe's figures, and at positions with a match those of every contestant."""
    served, label, seed = lab.served, lab.label_probe, lab.config.seed
    models = fit_match_models(
        lab.full_set,
        (served.site, served.fitted.linear),
        (label.site, label.fitted.linear),
    )
    sets: dict[str, ProbingSet] = {COPY_DIVERSITY: lab.full_set, **lab.evaluation}
    match = {name: match_table(data, models, data.rows("test")) for name, data in sets.items()}
    rows: list[dict[str, Any]] = []
    for name, scored in _scored(lab).items():
        members = list(lab.evaluation) if name == "all" else [name]
        table = pd.concat([match[member] for member in members], ignore_index=True)
        for loops in ("with", "without"):
            part, here = scored, table
            if loops == "without":
                part, here = scored.without_loops(), table[~table["in_loop"]]
            row: dict[str, Any] = {"set": name, "loops": loops}
            row |= scores(part, label.fitted.tau, seed=seed)
            row |= match_scores(here, seed=seed)
            rows.append(row)
    return pd.DataFrame(rows)
