"""Which drafts a command takes: the ones that are named, else the shipped ones, else none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SwitchSDError

if TYPE_CHECKING:
    from ..probing.copy_probe import CopyProbe
    from ..probing.lens import Lens
    from .drafters.drafter import Drafter
    from .eagle3.head import Eagle3Head


def draft_folders(lens: Lens, eagle3: Path | None, sps: Path | None) -> dict[str, Path]:
    """Where the drafts lie, by kind; the shipped ones where none is named."""
    from .shipped import find_shipped

    found = {
        "eagle3": eagle3 or find_shipped(lens, "eagle3"),
        "sps": sps or find_shipped(lens, "sps"),
    }
    return {kind: folder for kind, folder in found.items() if folder is not None}


def draft_digest(folder: Path) -> str:
    """What a run knows a draft by: a digest of its weights, or the id of one from the hub."""
    from .shipped import weights_digest

    return weights_digest(folder) if folder.is_dir() else str(folder)


def open_head(lens: Lens, folder: Path | None) -> Eagle3Head | None:
    """The EAGLE-3 head in a folder; without one None."""
    from .eagle3.checkpoint import load_head

    if folder is None:
        return None
    return load_head(folder, lens)


def open_draft_model(lens: Lens, folder: Path | None) -> Lens | None:
    """The draft model in a folder (any model that loads will do); without one None.

    Raises:
        SwitchSDError: a damaged draft, one for another target, or an EAGLE-3 head.
    """
    from ..probing.lens import Lens
    from ..probing.loading import load_quietly
    from .neural import read_draft

    if folder is None:
        return None
    draft: Any = read_draft(folder, lens)
    if draft is None:
        draft = load_quietly(str(folder), str(lens.device), lens.dtype)
        draft.digest = draft_digest(folder)
    if not isinstance(draft, Lens):
        raise SwitchSDError(f"{folder} holds an EAGLE-3 head: name it with --eagle3")
    return draft


@dataclass(frozen=True)
class Drafts:
    """The drafts that are measured; a policy without its draft is left out.

    Attributes:
        head: an EAGLE-3 head.
        model: a draft model (SPS).
        files: name → digest of its weights, by which a run knows whether it still fits.
        sizes: name → MiB of its weights.
        learning_curve: `tokens` and `mean_accepted` as the head's card has them: measured while it
            was trained, not here.
    """

    head: Eagle3Head | None
    model: Lens | None
    files: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)
    learning_curve: Sequence[Mapping[str, float]] = ()

    @classmethod
    def open(cls, lens: Lens, folders: Mapping[str, Path]) -> Drafts:
        """The drafts in these folders (see `draft_folders`), with what is known of their files.

        Raises:
            SwitchSDError: a damaged draft, one for another target, or one of the other kind.
        """
        from .shipped import weights_mib

        head = folders.get("eagle3")
        return cls(
            head=open_head(lens, head),
            model=open_draft_model(lens, folders.get("sps")),
            files={kind: draft_digest(folder) for kind, folder in folders.items()},
            sizes={
                name: weights_mib(folder) for name, folder in folders.items() if folder.is_dir()
            },
            learning_curve=learning_curve(head),
        )


def learning_curve(folder: Path | None) -> list[dict[str, float]]:
    """What a head's card says about accepted length against training tokens."""
    from .drafters.draft_card import read_card

    about = read_card(folder).get("about") if folder is not None else None
    return about.get("learning_curve") or [] if isinstance(about, dict) else []


def find_drafter(
    policy: str, lens: Lens, draft: str | None, gamma: int | None = None
) -> Drafter | None:
    """The policy's neural path: the draft that is named, else the shipped one; none for "none"."""
    from ..probing.loading import load_quietly
    from .neural import neural_drafter, read_draft

    if draft == "none":
        return None
    named: Any = None
    if draft is not None:
        named = read_draft(Path(draft), lens)
        if named is None:
            named = load_quietly(draft, str(lens.device), lens.dtype)
            named.digest = draft_digest(Path(draft))
    return neural_drafter(policy, lens, draft=named, gamma=gamma)


def own_drafters(lens: Lens, drafts: Drafts, probe: CopyProbe | None) -> dict[str, Drafter]:
    """What policies of one's own draft with, by kind; those that lack a draft or probe left out.

    So are kinds that every trace holds, and drafters that name none: they cannot be replayed.
    """
    from .neural import neural_drafter
    from .policies import POLICIES, Options, build_policy
    from .step.tree_shape import TreeShape

    found: dict[str, Drafter] = {}
    for name, recipe in POLICIES.items():
        draft = drafts.model if recipe.draft == "sps" else drafts.head
        needed = recipe.draft not in ("none", "any")
        if not recipe.own or (needed and draft is None) or ("probe" in recipe.reads and not probe):
            continue
        neural = None if draft is None else neural_drafter(name, lens, draft=draft)
        made = build_policy(name, Options(neural=neural, probe=probe)).neural
        kind = None if made is None else made.kind
        if made is None or kind in (None, "eagle3", "sps") or TreeShape.parse(kind) is not None:
            continue
        found.setdefault(str(kind), made)
    return found
