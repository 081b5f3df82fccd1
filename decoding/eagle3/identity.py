"""What a neural drafter is known by: its kind, and a digest of the files it was read from."""

from __future__ import annotations

from ..drafters.draft_model import DraftModel
from ..drafters.drafter import Drafter
from .drafter import Eagle3


def draft_identity(drafter: Drafter | None) -> tuple[str | None, str | None]:
    """(kind, digest) of a drafter: eagle3, a tree's name, sps, or what it says of itself.

    The digest is None where the draft was read from no file, as one that was just trained.
    """
    if isinstance(drafter, Eagle3):
        return "eagle3" if drafter.tree is None else drafter.tree.name, drafter.head.digest
    if isinstance(drafter, DraftModel):
        return "sps", drafter.lens.digest
    return getattr(drafter, "kind", None), getattr(drafter, "digest", None)
