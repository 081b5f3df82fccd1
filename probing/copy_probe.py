"""The frozen probe a decoder loads: weights, site, label offset, τ, and what model it is for."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import SwitchSDError
from ..runs import read_json, write_json
from .anatomy import Site
from .lens import Lens

_WEIGHTS, _DESCRIPTION = "probe.safetensors", "probe.json"
_FORMAT = 1


@dataclass(frozen=True)
class CopyProbe:
    """A linear probe on one site, with the scaler folded into its weights.

    Attributes:
        site: TransformerLens hook the probe reads.
        label_offset: the hidden state at position j answers for the token at j + label_offset.
        tau: threshold on the score, chosen on validation prompts.
        weight: [width] of the site, heads flattened.
        bias: scalar.
        model: name of the model it was trained on.
        fingerprint: that model's `Lens.fingerprint`.
        dtype: dtype the activations were captured in.
        versions: library versions at training.
        metrics: test figures with intervals.
    """

    site: str
    label_offset: int
    tau: float
    weight: Float[Tensor, width]
    bias: float
    model: str
    fingerprint: str
    dtype: str = "float32"
    versions: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Site.parse(self.site)
        if self.label_offset not in (0, 1, 2):
            raise SwitchSDError(f"label offset {self.label_offset}: choose 0, 1 or 2")
        if not (0 <= self.tau <= 1):
            raise SwitchSDError(f"tau = {self.tau}: the threshold on the score lies in 0–1")
        if self.weight.ndim != 1 or not torch.isfinite(self.weight).all():
            raise SwitchSDError("the probe's weights are not one finite vector")

    def score(self, activations: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows"]:
        """Probability of copy mode, in float32; `attn.hook_z` may come with its heads apart."""
        flat = activations if activations.shape[-1] == len(self.weight) else activations.flatten(-2)
        return torch.sigmoid(flat.float() @ self.weight.to(flat.device) + self.bias)

    @property
    def digest(self) -> str:
        """What its scores can be known by: a hash of site, weights and bias."""
        digest = hashlib.sha256(f"{self.site} {self.bias!r}".encode())
        digest.update(self.weight.detach().cpu().float().numpy().tobytes())
        return digest.hexdigest()[:24]

    def check(self, lens: Lens) -> None:
        """Raise unless this probe was made for `lens`' model."""
        if self.fingerprint != lens.fingerprint:
            raise SwitchSDError(
                f"this probe was trained on {self.model} ({self.fingerprint[:8]}), not on "
                f"{lens.name} ({lens.fingerprint[:8]}): train one with `switchsd probe train`"
            )
        lens.check_sites([self.site])
        if lens.site_width(self.site) != len(self.weight):
            raise SwitchSDError(
                f"the probe reads {len(self.weight)} numbers at {self.site}, which has "
                f"{lens.site_width(self.site)}"
            )

    def describe(self) -> dict[str, Any]:
        """Everything but the weights, as it stands in `probe.json`."""
        about = asdict(self)
        del about["weight"]
        return {"format": _FORMAT, "width": len(self.weight), **about}

    def save(self, folder: Path) -> None:
        """Write `probe.safetensors` and `probe.json` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"weight": self.weight.float().contiguous()}, folder / _WEIGHTS)
        write_json(folder / _DESCRIPTION, self.describe())
        # safetensors lets the owner alone read
        (folder / _WEIGHTS).chmod((folder / _DESCRIPTION).stat().st_mode)

    @classmethod
    def load(cls, folder: Path, lens: Lens | None = None) -> CopyProbe:
        """Read a probe; with `lens`, also check that it is for that model.

        Raises:
            SwitchSDError: missing, damaged or foreign files, or another model's probe.
        """
        if not (folder / _DESCRIPTION).is_file() or not (folder / _WEIGHTS).is_file():
            raise SwitchSDError(f"no probe in {folder}: it has no {_DESCRIPTION} and {_WEIGHTS}")
        about = read_json(folder / _DESCRIPTION)
        try:
            weight = load_file(folder / _WEIGHTS)["weight"]
            if about.pop("format") > _FORMAT:
                raise SwitchSDError(f"{folder} was written by a newer switchsd; upgrade to read it")
            width = about.pop("width")
            probe = cls(weight=weight, **about)
        except (SafetensorError, KeyError, TypeError, AttributeError, OSError) as error:
            raise SwitchSDError(
                f"the probe in {folder} is damaged ({error}); train it again or restore the files"
            ) from error
        if len(weight) != width:
            raise SwitchSDError(
                f"the probe in {folder} is damaged: {len(weight)} weights of {width}"
            )
        if lens is not None:
            probe.check(lens)
        return probe
