"""Given that the context offers a copy: does the probe know more than the surface does?

Only positions with a candidate count, and the question is the gate's own: will at least three
copied tokens be accepted (W = 1)? Everything is read at the moment the gate decides about the token
at t: the hidden state at t − 2, the surface features of the tokens before t. A probe that does not
beat a fitted surface baseline here only restates the rule that made its labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int

from ...intervals import NOTHING, auroc, interval, minus, prompt_numbers
from ...progress import Progress, silent
from ..corpora.token_table import GATE_LAG, given_match, surface_matrix, target_labels
from ..training.families import LinearProbe
from ..training.fitting import fit_columns, fit_on
from ..training.metrics import roc_auc
from ..training.probing_set import ProbingSet


@dataclass(frozen=True)
class MatchModels:
    """The contestants.

    Attributes:
        site: where the served probe reads.
        probe: the served probe.
        label_site, label: the probe of the paper's label, trained without knowing of matches.
        surface: logistic regression on the surface features.
        both: logistic regression on the served site's activations and the surface features.
    """

    site: str
    probe: LinearProbe
    label_site: str
    label: LinearProbe
    surface: LinearProbe
    both: LinearProbe


def fit_match_models(
    data: ProbingSet, served: tuple[str, LinearProbe], label: tuple[str, LinearProbe]
) -> MatchModels:
    """Fit surface and both on the training prompts' positions with a match, C on validation.

    Args:
        data: the training corpus.
        served: site and probe of the served probe.
        label: site and probe of the paper's label.
    """
    y, match = target_labels(data.tokens, "accepted"), given_match(data.tokens)
    train, valid = (rows[match[rows]] for rows in (data.rows("train"), data.rows("valid")))
    surface = fit_columns(
        surface_matrix(data.tokens)[train], y[train], (surface_matrix(data.tokens)[valid], y[valid])
    )
    both = fit_columns(
        _both(data, served[0], train), y[train], (_both(data, served[0], valid), y[valid])
    )
    return MatchModels(*served, *label, surface, both)


def _both(data: ProbingSet, site: str, rows: Int[np.ndarray, " row"]) -> np.ndarray:
    activations = data.activations(site, rows, lag=GATE_LAG)
    return np.column_stack([activations, surface_matrix(data.tokens)[rows]])


def match_table(
    data: ProbingSet, models: MatchModels, rows: Int[np.ndarray, " row"]
) -> pd.DataFrame:
    """Those of `rows` that have a match, with every contestant's logit.

    Returns:
        prompt_id, in_loop, y (three or more would be accepted), probe, label, surface, both.
    """
    rows = rows[given_match(data.tokens)[rows]]
    at_label = data.activations(models.label_site, rows, lag=GATE_LAG)
    return pd.DataFrame(
        {
            "prompt_id": data.groups[rows],
            "in_loop": data.tokens["in_loop"].to_numpy()[rows],
            "y": target_labels(data.tokens, "accepted")[rows],
            "probe": models.probe.logit(data.activations(models.site, rows, lag=GATE_LAG)),
            "label": models.label.logit(at_label),
            "surface": models.surface.logit(surface_matrix(data.tokens)[rows]),
            "both": models.both.logit(_both(data, models.site, rows)),
        }
    )


def match_scores(table: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """AUROC of each contestant and the paired differences to the surface, over prompts.

    Args:
        table: of `match_table`, of one set or several.
        seed: of the resampling.

    Returns:
        n_match, match_prevalence; `auroc_given_match` of the served probe, `label_…`, `surface_…`
        and `both_…` of the others; `gain_given_match` (served probe − surface), `label_gain_…` and
        `both_gain_…`; each with `_low` and `_high`. They are NaN where the positions have one
        class only or are of fewer than two prompts.
    """
    y = table["y"].to_numpy()
    prompt, n_prompts = prompt_numbers(table["prompt_id"])
    prevalence = float(np.mean(y)) if len(y) else np.nan
    row: dict[str, float] = {"n_match": len(y), "match_prevalence": prevalence}
    wanted = {
        f"{name}_auroc_given_match": auroc(prompt, y, table[name].to_numpy())
        for name in ("probe", "label", "surface", "both")
    }
    surface = wanted["surface_auroc_given_match"]
    for name in ("probe", "label", "both"):
        wanted[f"{name}_gain_given_match"] = minus(wanted[f"{name}_auroc_given_match"], surface)
    for name, statistic in wanted.items():
        found = interval(statistic, n_prompts, seed=seed) if n_prompts > 1 else NOTHING
        row |= found.columns(name.removeprefix("probe_"))
    return row


def match_auroc(data: ProbingSet, site: str, probe: LinearProbe, part: str) -> float:
    """AUROC of the probe's logit at the part's positions with a match (what selection looks at).

    NaN where they have one class only.
    """
    rows = data.rows(part)
    rows = rows[given_match(data.tokens)[rows]]
    y = target_labels(data.tokens, "accepted")[rows]
    if len(np.unique(y)) < 2:
        return float("nan")
    return roc_auc(y, probe.logit(data.activations(site, rows, lag=GATE_LAG)))


def selection_table(
    data: ProbingSet,
    sites: list[str],
    *,
    offsets: tuple[int, ...],
    targets: tuple[str, ...],
    progress: Progress = silent,
) -> pd.DataFrame:
    """Every site × offset × target on validation; the served probe is the best row for the gate.

    Returns:
        site, offset, target, setting, tau, valid_f1, valid_auroc (at the probe's own offset and
        target), valid_auroc_given_match (read where the gate reads).
    """
    rows = []
    ways = [(site, target, offset) for site in sites for target in targets for offset in offsets]
    for done, (site, target, offset) in enumerate(ways):
        progress("selection", done, len(ways))
        fitted = fit_on(data, site, offset=offset, target=target)
        rows.append(
            {
                "site": site,
                "offset": offset,
                "target": target,
                "setting": fitted.setting,
                "tau": fitted.tau,
                "valid_f1": fitted.valid_f1,
                "valid_auroc": fitted.valid_auroc,
                "valid_auroc_given_match": match_auroc(data, site, fitted.linear, "valid"),
            }
        )
    progress("selection", len(ways), len(ways))
    return pd.DataFrame(rows)
