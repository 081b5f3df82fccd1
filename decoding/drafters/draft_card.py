"""`draft.json`: what a draft on disk is, the target it was trained for, and what is known of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...runs import read_json, write_json

CARD = "draft.json"
Kind = Literal["eagle3", "sps"]


def write_card(
    folder: Path, kind: Kind, target: Lens, about: Mapping[str, Any] | None = None
) -> None:
    """Write the card beside a draft's weights.

    Args:
        folder: of the draft.
        kind: an EAGLE-3 head or a draft model.
        target: the model it was trained for.
        about: data, steps, metrics, anything that is JSON.
    """
    card = {
        "kind": kind,
        "target": target.name,
        "fingerprint": target.fingerprint,
        "about": dict(about or {}),
    }
    write_json(folder / CARD, card)


def read_card(folder: Path) -> dict[str, Any]:
    """The card in a folder; empty where there is none.

    Raises:
        SwitchSDError: a damaged card.
    """
    if not (folder / CARD).is_file():
        return {}
    card = read_json(folder / CARD)
    if not isinstance(card, dict):
        raise SwitchSDError(f"{folder / CARD} is no card of a draft; make the draft again")
    return card


def weights_of(folder: Path) -> list[Path]:
    """The weight files of a draft."""
    return sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin"))


def weights_digest(folder: Path) -> str:
    """SHA-256 of a draft's weight files, shortened: what a run with them can be known by."""
    digest = hashlib.sha256()
    for file in weights_of(folder):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:24]
