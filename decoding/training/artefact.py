"""A trained draft on disk: weights in half precision, `draft.json`, and a model card to read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...runs import Run, write_text
from .kinds import HALF, Kind


def write_artefact(
    run: Run,
    lens: Lens,
    kind: Kind,
    task: Any,
    checked: Sequence[int],
    folder: Path,
    about: Mapping[str, Any],
) -> None:
    """Round the weights, measure those, and write them with cards: whole or not at all.

    A folder that is not empty is left as it is: this run wrote it before it was interrupted.
    """
    with torch.no_grad():
        for weight in task.model.parameters():
            weight.copy_(weight.to(HALF))
    shares = task.evaluate(checked)
    run.update_metrics(mean_accepted=sum(shares), accepted_per_position=shares)
    if not folder.is_dir() or not any(folder.iterdir()):
        _write(kind, task, folder, lens, {**run.metrics(), **about})
    size = sum(file.stat().st_size for file in folder.iterdir())
    run.update_metrics(artefact_mib=size / 2**20)


def _write(kind: Kind, task: Any, folder: Path, lens: Lens, about: Mapping[str, Any]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        kind.save(task, part, lens, about)
        write_text(part / "README.md", _card(kind, lens, about))
        os.replace(part, folder)
    except (OSError, SafetensorError) as error:
        raise SwitchSDError(f"cannot write {folder}: {error}") from error


def _card(kind: Kind, lens: Lens, about: Mapping[str, Any]) -> str:
    """The model card: what it is for, how to use it, data, training, figures, licence."""
    shares = ", ".join(f"{share:.3f}" for share in about["accepted_per_position"])
    minutes = (about["training_seconds"] + about.get("capture_seconds", 0.0)) / 60
    threads = about["cores"]
    machine = f"{threads} CPU thread{'s'[: threads != 1]}" if threads else about["device"]
    curve = about.get("learning_curve", [])
    rows = [f"| {row['tokens']:,} | {row['mean_accepted']:.3f} |" for row in curve]
    table = ["", "| training tokens | mean accepted |", "| --- | --- |", *rows] if rows else []
    lines = [
        f"# {kind.title} for {lens.name}",
        "",
        f"Drafts tokens for {lens.name} (fingerprint `{lens.fingerprint}`), which verifies them: "
        "the text stays the target's own. For no other model.",
        "",
        "```console",
        f"$ switchsd generate --policy {kind.name} --model {lens.name} --draft FOLDER --prompt …",
        "```",
        "",
        "## Data",
        "",
        f"{about['texts']:,} texts, {about['tokens']:,} tokens, of {_files(about['files'])}. The "
        f"figures below are from {about['held_out_texts']} greedy completions of the first that "
        "share no passage with what was trained on.",
        "",
        "## Training",
        "",
        f"{about['parameters']:,} parameters, started from the target's own layers; "
        f"{about['steps']:,} steps, {about['tokens_seen']:,} tokens, {minutes:.0f} minutes on "
        f"{machine} ({about['dtype']}), features included. `draft.json` has recipe and schedule.",
        "",
        "## Figures",
        "",
        "A draft behind every token of the held-out completions, with the weights as they are "
        f"here: mean accepted {sum(about['accepted_per_position']):.3f}; share of drafts whose "
        f"first 1, 2, … guesses are all right: {shares}.",
        *table,
        "",
        "## Licence",
        "",
        about["licence"],
        "",
    ]
    return "\n".join(lines)


def _files(names: Sequence[str]) -> str:
    first, *more = (f"`{name}`" for name in names)
    own = f"{first} (the target's own completions with their prompts)"
    return f"{own} and {', '.join(more)}" if more else own
