"""Texts that are at hand anyway, as training texts: the target's odds on them are the lesson."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...data.chat import chat_ids
from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...progress import Progress, silent

SUFFIXES = (".py", ".md", ".rst", ".txt")
_SHORTEST = 64  # tokens of a piece
_A_FILE = 6  # pieces of one file at most, so that no long file is all there is


def gather(
    lens: Lens,
    folders: Sequence[Path],
    *,
    tokens: int,
    piece: int = 320,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Pieces of source and text files, each as the answer to a request to write that file.

    A draft head learns from the target's odds at every token, so the text need not be the target's
    own; it is no completion, and no check is made on it.

    Args:
        lens: the target, whose tokenizer and chat format are used.
        folders: searched for .py, .md, .rst and .txt files, tests left out.
        tokens: how many in all, about.
        piece: tokens of each text.
        seed: which files and pieces.
        progress: told the number of tokens.

    Returns:
        id, domain ("given"), prompt_ids, completion_ids, temperature (NaN: nobody generated it).

    Raises:
        SwitchSDError: no such folder, no text in it, or no tokenizer.
    """
    if lens.tokenizer is None:
        raise SwitchSDError(f"{lens.name} has no tokenizer to read texts with")
    if tokens < 1 or piece < _SHORTEST:
        raise SwitchSDError(f"tokens = {tokens}, piece = {piece}: at least 1 and {_SHORTEST}")
    files = [(folder, file) for folder in folders for file in _files(folder)]
    rng = np.random.default_rng(seed)
    rows, total = [], 0
    for folder, file in (files[i] for i in rng.permutation(len(files))):
        name = str(file.relative_to(folder))
        ids = lens.tokenizer(_read(file), add_special_tokens=False).input_ids
        pieces = [ids[start : start + piece] for start in range(0, len(ids), piece)]
        prompt = chat_ids(lens.tokenizer, [f"Write a part of {name}."])
        for number in np.sort(rng.permutation(len(pieces))[:_A_FILE]):
            if len(pieces[number]) >= _SHORTEST:
                rows.append((f"{name}#{number}", "given", prompt, pieces[number], np.nan))
                total += len(pieces[number])
        progress("texts", min(total, tokens), tokens)
        if total >= tokens:
            break
    if not rows:
        raise SwitchSDError(
            f"no {', '.join(SUFFIXES)} files with {_SHORTEST} tokens or more in "
            f"{', '.join(map(str, folders))}"
        )
    names = ["id", "domain", "prompt_ids", "completion_ids", "temperature"]
    return pd.DataFrame(rows, columns=names)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise SwitchSDError(f"{folder} is no folder")
    found = (file.relative_to(folder) for file in folder.rglob("*") if file.suffix in SUFFIXES)
    return [
        folder / file
        for file in sorted(found)
        if not any(part in _LEFT_OUT or part.startswith("test_") for part in file.parts)
    ]


_LEFT_OUT = ("test", "tests", "testing", "site-packages", "dist-packages", "__pycache__")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="ignore")
    except OSError:
        return ""  # a broken link, or not ours to read
