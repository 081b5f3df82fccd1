"""Fit a probe on training tokens and choose its setting and τ on validation tokens, always so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped

from ...errors import SwitchSDError
from ..corpora.token_table import target_known, target_labels
from .families import C_PATH, FAMILIES, LinearProbe, Probe, fit_logistic_path
from .metrics import best_f1_threshold, roc_auc
from .probing_set import ProbingSet

RECIPE = "C by validation AUROC, tau by validation F1"
"""How `fit` chooses; part of what identifies a stored result."""


@dataclass(frozen=True)
class Fitted:
    """A probe with what was chosen on validation.

    Attributes:
        probe: the weights.
        setting: the family's setting, as in `C=0.01`.
        tau: threshold with the greatest F1.
        valid_f1, valid_auroc: what it reached there.
        n_train: training tokens.
    """

    probe: Probe
    setting: str
    tau: float
    valid_f1: float
    valid_auroc: float
    n_train: int

    @property
    def linear(self) -> LinearProbe:
        """The probe, if it is a linear one."""
        if not isinstance(self.probe, LinearProbe):
            raise SwitchSDError("this probe is not linear; use a linear family")
        return self.probe


def fit(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    valid: tuple[Shaped[np.ndarray, "m d"], Shaped[np.ndarray, " m"]],
    *,
    family: str = "logistic",
    seed: int = 0,
) -> Fitted:
    """Fit every setting of a family, keep the one with the greatest validation AUROC; τ by F1.

    Raises:
        SwitchSDError: unknown family, one class only, activations that are not finite.
    """
    if family not in FAMILIES:
        raise SwitchSDError(f"unknown probe family {family!r}: choose {', '.join(FAMILIES)}")
    best: Fitted | None = None
    for setting, probe in FAMILIES[family](X, y, groups, seed=seed).items():
        score = probe.score(valid[0])
        tau, f1 = best_f1_threshold(valid[1], score)
        auroc = roc_auc(valid[1], score)
        if best is None or auroc > best.valid_auroc:
            best = Fitted(probe, setting, tau, f1, auroc, len(X))
    assert best is not None  # every family has at least one setting
    return best


def fit_on(
    data: ProbingSet,
    site: str | Sequence[str],
    *,
    offset: int,
    target: str = "copied",
    family: str = "logistic",
    train: Int[np.ndarray, " row"] | None = None,
    seed: int = 0,
) -> Fitted:
    """`fit` on a set's own training and validation parts.

    Args:
        data: the training corpus.
        site: where the probe reads; several are put side by side.
        offset: the hidden state at j answers for the token at j + offset.
        target: one of `token_table.TARGETS`.
        family: of probes.
        train: training tokens to use; all if None.
        seed: of families that draw.
    """
    labels, known = target_labels(data.tokens, target), target_known(data.tokens, target)
    chosen = data.rows("train") if train is None else train
    chosen, valid = chosen[known[chosen]], data.rows("valid")
    valid = valid[known[valid]]
    return fit(
        data.activations(site, chosen, lag=offset),
        labels[chosen],
        data.groups[chosen],
        (data.activations(site, valid, lag=offset), labels[valid]),
        family=family,
        seed=seed,
    )


def fit_columns(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    valid: tuple[Shaped[np.ndarray, "m d"], Shaped[np.ndarray, " m"]],
) -> LinearProbe:
    """Logistic regression on any columns, C by AUROC on validation."""
    probes = fit_logistic_path(X, y, C=C_PATH)
    return max(probes, key=lambda probe: roc_auc(valid[1], probe.logit(valid[0])))
