"""Fits of cost-aware that come with the project: <model>/cost-aware/<kind of draft>.json."""

from __future__ import annotations

from pathlib import Path

from ..errors import SwitchSDError
from .cost_aware import CostAwareFit, how_to_fit
from .drafters.eagle3_tree import TreeShape
from .shipped import SHIPPED


def shipped_tree(fingerprint: str, *, folder: Path = SHIPPED) -> TreeShape | None:
    """The tree that a model's EAGLE-3 head drafts under cost-aware; None if no fit is for a tree.

    Where chain and tree are fitted both, the tree is served.
    """
    for path in sorted(folder.glob("*/cost-aware/tree_*.json")):
        fit = CostAwareFit.load(path)
        if fit.model == fingerprint:
            return TreeShape.parse(fit.kind)
    return None


def shipped_fit(fingerprint: str, kind: str | None, *, folder: Path = SHIPPED) -> CostAwareFit:
    """The fit shipped for a model and a kind of draft.

    Args:
        fingerprint: of the target.
        kind: eagle3, sps, a tree's name, or None for none.
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
