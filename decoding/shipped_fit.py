"""Fits of cost-aware that come with the project: <model>/cost-aware/<kind of draft>.json."""

from __future__ import annotations

from pathlib import Path

from ..errors import SwitchSDError
from .cost_aware import CostAwareFit, how_to_fit
from .shipped import SHIPPED


def shipped_fit(fingerprint: str, kind: str | None, *, folder: Path = SHIPPED) -> CostAwareFit:
    """The fit shipped for a model and a kind of draft.

    Args:
        fingerprint: of the target.
        kind: eagle3, sps, or None for none.
        folder: where the fits lie.

    Raises:
        SwitchSDError: none was shipped; it says how to make one.
    """
    for path in sorted(folder.glob(f"*/cost-aware/{kind or 'none'}.json")):
        fit = CostAwareFit.load(path)
        if fit.model == fingerprint:
            return fit
    raise SwitchSDError(
        f"no fit of cost-aware is shipped for the model {fingerprint[:8]} with the draft "
        f"{kind or 'none'}: {how_to_fit(kind)}"
    )
