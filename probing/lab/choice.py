"""From a selection table to the probe that a decoder loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import pandas as pd
import torch

from ...errors import SwitchSDError
from ..copy_probe import CopyProbe
from ..corpora.token_table import target_known, target_labels
from ..lens import Lens
from ..training.fitting import Fitted, fit_on
from ..training.probing_set import ProbingSet
from .evaluation import score_set, scores


@dataclass(frozen=True)
class Chosen:
    """A probe that validation chose, and how it was trained."""

    site: str
    offset: int
    target: str
    fitted: Fitted
    valid_auroc_given_match: float

    def describe(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "site": self.site,
            "offset": self.offset,
            "target": self.target,
            "tau": self.fitted.tau,
            "setting": self.fitted.setting,
            "n_train_tokens": self.fitted.n_train,
            "valid_f1": self.fitted.valid_f1,
            "valid_auroc": self.fitted.valid_auroc,
            "valid_auroc_given_match": self.valid_auroc_given_match,
        }


def choose(data: ProbingSet, selection: pd.DataFrame, *, by: str) -> Chosen:
    """Fit the best row of a selection table.

    Args:
        data: the training corpus.
        selection: `match_study.selection_table`, or some of its rows.
        by: the column to be greatest; all of them are measured on validation.

    Raises:
        SwitchSDError: no row has a figure there.
    """
    table = selection[selection[by].notna()]
    if table.empty:
        raise SwitchSDError(
            "the validation prompts offer no copies that are right and none that are wrong, so no "
            "site can be chosen; use more prompts"
        )
    best = table.iloc[int(table[by].to_numpy().argmax())]
    site, offset, target = str(best["site"]), int(best["offset"]), str(best["target"])
    fitted = fit_on(data, site, offset=offset, target=target)
    return Chosen(site, offset, target, fitted, float(best["valid_auroc_given_match"]))


def as_copy_probe(chosen: Chosen, data: ProbingSet, lens: Lens, *, seed: int = 0) -> CopyProbe:
    """The artefact, with its scores on the test prompts about the target it was trained for."""
    fitted, rows = chosen.fitted, data.rows("test")
    rows = rows[target_known(data.tokens, chosen.target)[rows]]
    scored = score_set(data, fitted.probe, chosen.site, rows, lag=chosen.offset)
    asked = replace(scored, y=target_labels(scored.tokens, chosen.target))
    about: dict[str, Any] = {
        "set": f"{data.name} (test prompts)",
        "target": chosen.target,
        "setting": fitted.setting,
        "n_train_tokens": fitted.n_train,
    }
    return CopyProbe(
        site=chosen.site,
        label_offset=chosen.offset,
        tau=fitted.tau,
        weight=torch.from_numpy(fitted.linear.weight),
        bias=fitted.linear.bias,
        model=lens.name,
        fingerprint=lens.fingerprint,
        dtype=lens.dtype,
        versions={name: version(name) for name in ("switchsd", "torch", "transformers")},
        metrics=about | scores(asked, fitted.tau, seed=seed),
    )
