"""The drafter of a policy's neural path: a draft that was named, else the one that is shipped.

`policies` composes any drafter and knows no files; `shipped` knows files and no policies.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import SwitchSDError
from ..probing.lens import Lens
from .drafters.draft_card import read_card
from .drafters.draft_checkpoint import load_draft
from .drafters.draft_model import DraftModel
from .drafters.drafter import Drafter
from .eagle3.checkpoint import load_head
from .eagle3.drafter import Eagle3, TreeShape
from .eagle3.head import Eagle3Head
from .policies import recipe_of
from .shipped import SHIPPED, has_shipped_head, shipped_draft, shipped_head, shipped_tree

GAMMA_EAGLE3, GAMMA_SPS = 5, 4
GAMMA_MOST = 10
"""Most a gate that chooses its own lookahead can ask for: as deep as chains are traced."""
TREE = TreeShape(total=20, depth=4, top_k=4)
"""Verifying 20 tokens costs a CPU about 1.5 forwards; published presets of 60 are for a GPU."""


def neural_drafter(
    policy: str,
    lens: Lens,
    *,
    draft: Eagle3Head | Lens | None = None,
    gamma: int | None = None,
    tree: TreeShape = TREE,
    folder: Path = SHIPPED,
) -> Drafter | None:
    """What drafts where the policy does not copy.

    eagle3 and eagle3-tree need a head, sps a draft model. The policies that copy take either, by
    default the shipped head as a chain, and go on without where none is shipped.

    Args:
        policy: a name from the registry.
        lens: the target.
        draft: a head or a draft model; the shipped one if None.
        gamma: lookahead; 5 with a head, 4 with a draft model if None. cost-aware chooses: if None
            it has chains of 10 at most, or the tree its shipped fit is for.
        tree: of eagle3-tree.
        folder: where shipped drafts lie.

    Raises:
        SwitchSDError: unknown policy, a draft of the other kind, or none for a policy that needs
            one; it says how to train one.

    Example:
        >>> options = Options(neural=neural_drafter("eagle3", lens))
    """
    recipe = recipe_of(policy)
    if recipe.draft == "none":
        return None
    fitted = None
    if "fit" in recipe.reads and gamma is None:
        gamma = GAMMA_MOST  # its gate says how deep
        fitted = shipped_tree(lens.fingerprint, folder=folder)
    if recipe.draft in ("eagle3", "eagle3-tree"):
        if isinstance(draft, Lens):
            raise SwitchSDError(
                f"{policy} drafts with an EAGLE-3 head and {draft.name} is a model: use it with sps"
            )
        head = shipped_head(lens, folder=folder) if draft is None else draft
        shape = tree if recipe.draft == "eagle3-tree" else None
        return Eagle3(head, lens, gamma=GAMMA_EAGLE3 if gamma is None else gamma, tree=shape)
    if recipe.draft == "sps":
        if isinstance(draft, Eagle3Head):
            raise SwitchSDError(
                f"{policy} drafts with a model of its own and this is an EAGLE-3 head: use it with "
                "eagle3 or eagle3-tree"
            )
        draft = shipped_draft(lens, folder=folder) if draft is None else draft
    elif draft is None:
        if not has_shipped_head(lens, folder=folder):
            return None
        draft = shipped_head(lens, folder=folder)
    if isinstance(draft, Eagle3Head):
        gamma = GAMMA_EAGLE3 if gamma is None else gamma
        return Eagle3(draft, lens, gamma=gamma, tree=fitted)
    return DraftModel(draft, lens, gamma=GAMMA_SPS if gamma is None else gamma)


def read_draft(folder: Path, lens: Lens) -> Eagle3Head | Lens | None:
    """The head, or the draft model trained by this lab, in a folder.

    None where the folder holds neither, so perhaps a model that `load` reads.

    Raises:
        SwitchSDError: a damaged draft, or one for another target.
    """
    kind = read_card(folder).get("kind")
    if kind == "sps":
        return load_draft(folder, lens)
    return load_head(folder, lens) if kind == "eagle3" or _is_head(folder) else None


def _is_head(folder: Path) -> bool:
    """Whether a config is that of an EAGLE-3 head, as published ones have it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(config, dict):
        return False
    architectures = config.get("architectures") or []
    return "draft_vocab_size" in config or any("eagle" in str(a).lower() for a in architectures)
