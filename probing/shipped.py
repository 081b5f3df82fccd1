"""Probes that come with the project: found by the fingerprint of the model they were trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SwitchSDError
from ..runs import read_json

if TYPE_CHECKING:
    from .copy_probe import CopyProbe
    from .lens import Lens

SHIPPED = Path(__file__).parent / "shipped"
"""One folder a model, each with `probe.json` and `probe.safetensors`."""


def has_shipped_probe(lens: Lens, *, folder: Path = SHIPPED) -> bool:
    """Whether one is shipped for this model."""
    return _find(lens, folder) is not None


def shipped_probe(lens: Lens, *, folder: Path = SHIPPED) -> CopyProbe:
    """The probe shipped for this model.

    Args:
        lens: the target.
        folder: where the probes lie, one folder each.

    Raises:
        SwitchSDError: no probe was shipped for this model; it says how to train one.
    """
    from .copy_probe import CopyProbe

    found = _find(lens, folder)
    if found is None:
        raise SwitchSDError(
            f"no probe is shipped for {lens.name}: train one with `switchsd probe train --model "
            f"{lens.name}` and name its folder with --probe"
        )
    return CopyProbe.load(found, lens)


def _find(lens: Lens, folder: Path) -> Path | None:
    for about in sorted(folder.glob("*/probe.json")):
        if read_json(about).get("fingerprint") == lens.fingerprint:
            return about.parent
    return None


def find_probe(lens: Lens, folder: Path | None, *, required: bool) -> CopyProbe | None:
    """The probe in `folder`, else the one shipped for this model.

    Without either: an error that says how to train one if it is required, else None.
    """
    from .copy_probe import CopyProbe

    if folder is not None:
        return CopyProbe.load(folder, lens)
    return shipped_probe(lens) if required or has_shipped_probe(lens) else None
