"""A probe with one hidden layer: how much more a site holds than a line through it can read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ...errors import SwitchSDError
from ..corpora.partition import split_groups
from .logistic import standardise

_BATCH = 256
_RATE = 2e-3
_DECAY = 1e-2


@dataclass(frozen=True)
class MlpProbe:
    """logit = relu(X · inner + inner_bias) · outer + bias on raw activations, scaler folded in."""

    inner: Float[np.ndarray, "d hidden"]
    inner_bias: Float[np.ndarray, " hidden"]
    outer: Float[np.ndarray, " hidden"]
    bias: float

    def logit(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Log-odds of copy mode. Raises `SwitchSDError` when the width of X differs."""
        if X.shape[-1] != len(self.inner):
            raise SwitchSDError(
                f"the probe reads {len(self.inner)} features, the activations have {X.shape[-1]}; "
                "use activations of the site and model it was trained on"
            )
        hidden = np.maximum(np.asarray(X, np.float32) @ self.inner + self.inner_bias, 0)
        return hidden @ self.outer + np.float32(self.bias)

    def score(self, X: Shaped[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Probability of copy mode: the sigmoid of `logit`."""
        return 0.5 * (1 + np.tanh(0.5 * self.logit(X)))


def fit_mlp(
    X: Shaped[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"],
    *,
    hidden: int = 64,
    seed: int = 0,
    epochs: int = 100,
    patience: int = 5,
) -> MlpProbe:
    """Fit with AdamW; keeps the epoch with the least loss on a fifth of the prompts held out.

    Stops after `patience` epochs without a better one. Same seed, input and thread count: same
    probe.

    Raises `SwitchSDError` on too few prompts to hold some out and on NaN or infinite activations.
    """
    train, held_out = split_groups(groups, fractions=(0.8, 0.2), seed=seed)
    data = standardise(X)
    Z, target = data.values, torch.from_numpy(np.asarray(y)).float()
    random = torch.Generator().manual_seed(seed)
    parameters = _start(Z.shape[1], hidden, random)
    optimiser = torch.optim.AdamW(parameters, lr=_RATE, weight_decay=_DECAY)
    rows, check = torch.from_numpy(train), torch.from_numpy(held_out)
    best, kept, waited = float("inf"), [p.detach().clone() for p in parameters], 0
    for _ in range(epochs):
        for batch in rows[torch.randperm(len(rows), generator=random)].split(_BATCH):
            loss = binary_cross_entropy_with_logits(_forward(Z[batch], parameters), target[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            logits = _forward(Z[check], parameters)
            held = float(binary_cross_entropy_with_logits(logits, target[check]))
        if held < best:
            best, kept, waited = held, [p.detach().clone() for p in parameters], 0
        else:
            waited += 1
        if waited == patience:
            break
    inner, inner_bias, outer, bias = (p.double().numpy() for p in kept)
    folded = (inner * data.inverse_scale[:, None]).astype(np.float32)
    return MlpProbe(
        inner=folded,
        inner_bias=(inner_bias - data.mean @ folded).astype(np.float32),
        outer=outer.astype(np.float32),
        bias=float(bias),
    )


def _start(width: int, hidden: int, random: torch.Generator) -> list[Tensor]:
    """He initialisation inside, small outside; zero biases."""
    inner = torch.randn(width, hidden, generator=random) * (2 / width) ** 0.5
    outer = torch.randn(hidden, generator=random) * hidden**-0.5
    parameters = [inner, torch.zeros(hidden), outer, torch.zeros(())]
    return [p.requires_grad_() for p in parameters]


def _forward(Z: Float[Tensor, "n d"], parameters: list[Tensor]) -> Float[Tensor, " n"]:
    inner, inner_bias, outer, bias = parameters
    return torch.relu(Z @ inner + inner_bias) @ outer + bias
