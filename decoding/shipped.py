"""Drafts that come with the project: found by the fingerprint of the model they are for."""

from __future__ import annotations

from pathlib import Path

from ..errors import SwitchSDError
from ..probing.lens import Lens
from .drafters.draft_card import CARD, Kind, read_card, weights_of
from .drafters.draft_card import weights_digest as weights_digest
from .drafters.draft_checkpoint import load_draft
from .eagle3.checkpoint import load_head
from .eagle3.head import Eagle3Head
from .gates.cost_aware import CostAwareFit, how_to_fit
from .step.tree_shape import TreeShape

SHIPPED = Path(__file__).parent / "shipped"
"""<model>/eagle3 and <model>/sps, each with a `draft.json` beside the weights."""

_NAMES: dict[Kind, str] = {"eagle3": "EAGLE-3 head", "sps": "draft model"}


def has_shipped_head(lens: Lens, *, folder: Path = SHIPPED) -> bool:
    """Whether an EAGLE-3 head is shipped for this model."""
    return find_shipped(lens, "eagle3", folder=folder) is not None


def has_shipped_draft(lens: Lens, *, folder: Path = SHIPPED) -> bool:
    """Whether a draft model is shipped for this model."""
    return find_shipped(lens, "sps", folder=folder) is not None


def shipped_head(lens: Lens, *, folder: Path = SHIPPED) -> Eagle3Head:
    """The EAGLE-3 head shipped for this model, on its device and in its dtype.

    Args:
        lens: the target.
        folder: where the drafts lie.

    Raises:
        SwitchSDError: none was shipped for this model; it says how to train one.
    """
    return load_head(_found(lens, "eagle3", folder), lens)


def shipped_draft(lens: Lens, *, folder: Path = SHIPPED) -> Lens:
    """The draft model (SPS) shipped for this model; arguments and errors as `shipped_head`."""
    return load_draft(_found(lens, "sps", folder), lens)


def find_shipped(lens: Lens, kind: Kind, *, folder: Path = SHIPPED) -> Path | None:
    """The folder of the draft of that kind for this model; None without one."""
    for card in sorted(folder.glob(f"*/*/{CARD}")):
        about = read_card(card.parent)
        if about.get("kind") == kind and about.get("fingerprint") == lens.fingerprint:
            return card.parent
    return None


def weights_mib(folder: Path) -> float:
    """Size of a draft's weight files."""
    return sum(file.stat().st_size for file in weights_of(folder)) / 2**20


def _found(lens: Lens, kind: Kind, folder: Path) -> Path:
    found = find_shipped(lens, kind, folder=folder)
    if found is None:
        raise SwitchSDError(
            f"no {_NAMES[kind]} is shipped for {lens.name}: train one with `switchsd draft train "
            f"{kind} --model {lens.name}` and name its folder with --draft"
        )
    return found


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
