"""Probe families: each reads one activation vector and says how likely its token is a copy.

Every fit standardises the columns and folds the scaler into the result, so a probe works on raw
activations and its logit decomposes over what is added into the residual stream. scikit-learn's
estimators behind a `StandardScaler` are the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ...errors import SwitchSDError
from .logistic import solve_path, standardise
from .metrics import require_both_classes
from .mlp import fit_mlp

C_PATH = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse regularisation, weakest last; chosen between on validation prompts."""

SHRINKAGE_PATH = (0.01, 0.1, 0.5)


class Probe(Protocol):
    """What every family returns."""

    def logit(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Log-odds of copy mode, from raw activations."""

    def score(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Probability of copy mode, from raw activations."""


@dataclass(frozen=True)
class LinearProbe:
    """logit = X · weight + bias on raw activations, the scaler folded in."""

    weight: Float[np.ndarray, " d"]
    bias: float

    def logit(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Log-odds of copy mode. Raises `SwitchSDError` when the width of X differs."""
        if X.shape[-1] != len(self.weight):
            raise SwitchSDError(
                f"the probe reads {len(self.weight)} features, the activations have {X.shape[-1]}; "
                "use activations of the site and model it was trained on"
            )
        return np.asarray(X, np.float32) @ self.weight + np.float32(self.bias)

    def score(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Probability of copy mode: the sigmoid of `logit`."""
        return 0.5 * (1 + np.tanh(0.5 * self.logit(X)))  # a sigmoid that cannot overflow


def fit_logistic_path(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    *,
    C: Sequence[float] = C_PATH,
    weights: Float[np.ndarray, " n"] | None = None,
) -> list[LinearProbe]:
    """L2 logistic regression on standardised columns, one probe for each C, in the order of `C`.

    The objective of scikit-learn's `LogisticRegression(C=C)` behind a `StandardScaler`; `weights`
    is its `sample_weight` (standardising ignores it). Same result for the same input and thread
    count.

    Raises:
        SwitchSDError: one class only, NaN or infinite activations, C not positive, no convergence.
    """
    if not C or min(C) <= 0:
        raise SwitchSDError(f"C must hold positive numbers, got {list(C)}")
    labels = _labels(X, y)
    if weights is not None:
        weights = np.asarray(weights, np.float32)
        if weights.shape != labels.shape or not np.all(np.isfinite(weights) & (weights >= 0)):
            raise SwitchSDError("weights must be one finite number of at least 0 a token")
        require_both_classes(labels[weights > 0])
    data = standardise(X)
    found = solve_path(data, labels, C=C, weights=weights)
    return [LinearProbe(*data.fold(weight, bias)) for weight, bias in found]


def fit_difference_of_means(
    X: Shaped[np.ndarray, "n d"], y: Shaped[np.ndarray, " n"]
) -> LinearProbe:
    """The direction from the mean of non-copy to the mean of copy tokens, standardised columns.

    A logistic regression on that one projection sets scale and bias, so scores are probabilities.

    Raises `SwitchSDError` on one class only and on NaN or infinite activations.
    """
    labels = _labels(X, y)
    data = standardise(X)
    # Columns have mean 0: the mean of the copy class points away from the other's.
    direction = (data.values.T @ torch.from_numpy(labels).float()).double().numpy()
    direction = direction / max(float(np.linalg.norm(direction)), 1e-12)
    projection = data.values @ torch.from_numpy(direction).float()
    [line] = fit_logistic_path(projection[:, None].numpy(), labels, C=[1.0])
    return LinearProbe(*data.fold(direction * line.weight[0], line.bias))


def fit_lda(
    X: Shaped[np.ndarray, "n d"], y: Shaped[np.ndarray, " n"], *, shrinkage: float = 0.1
) -> LinearProbe:
    """Linear discriminant with the within-class covariance shrunk towards its mean variance.

    Raises `SwitchSDError` on one class only, NaN or infinite activations, shrinkage outside (0, 1].
    """
    if not 0 < shrinkage <= 1:
        raise SwitchSDError(f"shrinkage must be above 0 and at most 1, got {shrinkage}")
    labels = _labels(X, y)
    data = standardise(X)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    model.fit(data.values.double().numpy(), labels)
    return LinearProbe(*data.fold(model.coef_[0], float(model.intercept_[0])))


class Family(Protocol):
    """Fits every setting of a family: setting → probe; the caller chooses on validation prompts."""

    def __call__(
        self,
        X: Shaped[np.ndarray, "n d"],
        y: Shaped[np.ndarray, " n"],
        groups: Shaped[np.ndarray, " n"],
        *,
        seed: int,
    ) -> dict[str, Probe]:
        """Fit on training tokens; `groups` is the prompt of each."""


def _logistic(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    seed: int,
) -> dict[str, Probe]:
    return {f"C={c:g}": p for c, p in zip(C_PATH, fit_logistic_path(X, y, C=C_PATH), strict=True)}


def _difference_of_means(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    seed: int,
) -> dict[str, Probe]:
    return {"": fit_difference_of_means(X, y)}


def _lda(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    seed: int,
) -> dict[str, Probe]:
    return {f"shrinkage={s:g}": fit_lda(X, y, shrinkage=s) for s in SHRINKAGE_PATH}


def _mlp(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    seed: int,
) -> dict[str, Probe]:
    _labels(X, y)
    return {"hidden=64": fit_mlp(X, y, groups, hidden=64, seed=seed)}


FAMILIES: dict[str, Family] = {
    "logistic": _logistic,
    "difference_of_means": _difference_of_means,
    "lda": _lda,
    "mlp": _mlp,
}


def _labels(X: Shaped[np.ndarray, "n ..."], y: Shaped[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    labels = np.asarray(y).astype(bool)
    if labels.shape != (len(X),):
        raise SwitchSDError(f"{len(X)} tokens of activations but labels of shape {labels.shape}")
    require_both_classes(labels)
    return labels
