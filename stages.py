"""Stages of a long run: each leaves a table and a stamp that says what the table was made from.

A stage whose stamp still fits is read instead of computed, so an interrupted run goes on and a
changed setting redoes what depends on it. What no longer fits is moved to `aside/`, never deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import SwitchSDError
from .runs import Run, read_json, read_parquet, write_json, write_parquet


@dataclass(frozen=True)
class Done:
    """A finished stage: its table, and the digest that later stages are made from."""

    table: pd.DataFrame
    digest: str


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, shortened."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def stage(
    run: Run, name: str, made_from: dict[str, Any], compute: Callable[[], pd.DataFrame]
) -> Done:
    """The table `name` of a run, computed unless it lies there made from the same things.

    Args:
        run: the run folder.
        name: of the table and of its stamp.
        made_from: settings and digests of what goes in; JSON.
        compute: makes the table.

    Raises:
        SwitchSDError: what `compute` raises, or a folder that cannot be written.
    """
    key = digest([name, made_from])
    table, stamp = run.path / f"{name}.parquet", run.path / "stages" / f"{name}.json"
    if stamp.is_file() and table.is_file():
        about = read_json(stamp)
        if about.get("key") == key and about.get("sha256") == _sha256(table):
            return Done(run.table(name), key)
    begin = time.perf_counter()
    frame = compute()
    for path in (table, stamp):  # only now: until there is a new one the old table stands
        if path.is_file():
            _move_aside(run, path)
    run.write_table(name, frame)
    write_json(
        stamp,
        {
            "key": key,
            "made_from": made_from,
            "rows": len(frame),
            "seconds": round(time.perf_counter() - begin, 1),
            "sha256": _sha256(table),
        },
    )
    return Done(frame, key)


def kept(file: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The table in a file, made and written there first unless it is there.

    One piece of a long work: an interrupted one goes on at the next.
    """
    if not file.is_file():
        write_parquet(file, make())
    return read_parquet(file)


def open_run(path: Path, *, command: str, config: dict[str, Any]) -> Run:
    """Open a run folder to which several commands add: finished stages stay.

    A folder made with another config is moved aside as a whole (see `Run.start`).
    """
    run = Run.start(path, command=command, config=config, again=True)
    run.describe(state="running")
    return run


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            found.update(piece)
    return found.hexdigest()


def _move_aside(run: Run, path: Path) -> None:
    folder, number = run.path / "aside", 0
    while (aside := folder / f"{path.stem}-{number}{path.suffix}").exists():
        number += 1
    try:
        folder.mkdir(exist_ok=True)
        os.replace(path, aside)
    except OSError as error:
        raise SwitchSDError(f"cannot move {path} aside: {error.strerror or error}") from error
