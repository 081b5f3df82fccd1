"""Drafts on the command line: their options; the ones named, else shipped, else none and said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SwitchSDError

if TYPE_CHECKING:
    from ..decoding.drafters.eagle3_head import Eagle3Head
    from ..decoding.drafters.eagle3_tree import TreeShape
    from ..probing.lens import Lens


HeadFolder = Annotated[
    Path | None,
    typer.Option("--eagle3", help="Folder of an EAGLE-3 head; the shipped one if left out."),
]
DraftFolder = Annotated[
    Path | None,
    typer.Option("--sps", help="Folder of a draft model; the shipped one if left out."),
]
ProbeFolder = Annotated[
    Path | None,
    typer.Option("--probe", help="Folder of the CopyProbe; the shipped one if left out."),
]
Trees = Annotated[
    list[str] | None,
    typer.Option(
        "--tree", help="Draft tree, total/depth/top_k; may repeat. 20/4/4 and 60/5/10 if left out."
    ),
]
AutoDtype = Annotated[
    str,
    typer.Option(help="auto: bfloat16 where the processor computes it natively, else float32."),
]


def draft_folders(lens: Lens, eagle3: Path | None, sps: Path | None) -> dict[str, Path]:
    """Where the drafts lie, by kind; the shipped ones where none is named."""
    from ..decoding.shipped import find_shipped

    found = {
        "eagle3": eagle3 or find_shipped(lens, "eagle3"),
        "sps": sps or find_shipped(lens, "sps"),
    }
    return {kind: folder for kind, folder in found.items() if folder is not None}


def draft_digests(folders: dict[str, Path]) -> dict[str, str]:
    """What a run knows its drafts by: a digest of the weights, or the id of one from the hub."""
    return {kind: draft_digest(folder) for kind, folder in folders.items()}


def draft_digest(folder: Path) -> str:
    """The same of one draft."""
    from ..decoding.shipped import weights_digest

    return weights_digest(folder) if folder.is_dir() else str(folder)


def open_head(lens: Lens, folder: Path | None) -> Eagle3Head | None:
    """The EAGLE-3 head in a folder; without one None."""
    from ..decoding.drafters.eagle3_checkpoint import load_head

    if folder is None:
        return None
    return load_head(folder, lens)


def open_draft_model(lens: Lens, folder: Path | None) -> Lens | None:
    """The draft model in a folder (any model that loads will do); without one None.

    Raises:
        SwitchSDError: a damaged draft, one for another target, or an EAGLE-3 head.
    """
    from ..decoding.neural import read_draft
    from ..probing.lens import Lens
    from ..probing.loading import load_quietly

    if folder is None:
        return None
    draft: Any = read_draft(folder, lens)
    if draft is None:
        draft = load_quietly(str(folder), str(lens.device), lens.dtype)
        draft.digest = draft_digest(folder)
    if not isinstance(draft, Lens):
        raise SwitchSDError(f"{folder} holds an EAGLE-3 head: name it with --eagle3")
    return draft


def tree_shape(text: str) -> TreeShape:
    """The shape written total/depth/top_k.

    Raises:
        SwitchSDError: something else, or numbers out of range.
    """
    from ..decoding.drafters.eagle3_tree import TreeShape

    try:
        total, depth, top_k = (int(part) for part in text.split("/"))
    except ValueError as error:
        raise SwitchSDError(f"--tree {text}: give total/depth/top_k, as in 20/4/4") from error
    return TreeShape(total, depth, top_k)
