"""What a probe reads, as attribution needs it: a site, weights for raw activations, and a bias."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.anatomy import Site
from ...probing.copy_probe import CopyProbe
from ...probing.training.families import LinearProbe
from ...probing.training.mlp import MlpProbe


@dataclass(frozen=True)
class Reading:
    """logit = stream · weight + bias, at a site; heads flattened.

    Attributes:
        site: TransformerLens hook.
        weight: on raw activations.
        bias: with all that a scaler subtracts.
    """

    site: str
    weight: Float[Tensor, " width"]
    bias: float

    def __post_init__(self) -> None:
        Site.parse(self.site)


def reading(probe: CopyProbe | LinearProbe | MlpProbe, site: str | None = None) -> Reading:
    """The reading of a linear probe.

    Args:
        probe: a linear one; a `CopyProbe` names its own site.
        site: where a `LinearProbe` reads.

    Raises:
        SwitchSDError: an MLP probe, or no site.
    """
    if isinstance(probe, MlpProbe):
        raise SwitchSDError(
            "an MLP probe's logit is no sum over heads and MLPs: its hidden layer mixes them, so "
            "no exact attribution exists. Take a linear probe at the same site"
        )
    if isinstance(probe, CopyProbe):
        return Reading(probe.site, probe.weight.float(), probe.bias)
    if site is None:
        raise SwitchSDError("name the site the probe reads, as in blocks.20.hook_resid_mid")
    return Reading(site, torch.from_numpy(probe.weight).float(), float(probe.bias))
