"""Run folders: everything a command writes goes to one, whole or not at all, and nothing is lost.

runs/<name>/manifest.json   what was run, on what, when; `state` is "running" or "complete"
runs/<name>/metrics.json    the figures, machine-readable; a command updates only its own keys
runs/<name>/<table>.parquet
runs/<name>/figures/
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from .errors import SwitchSDError

if TYPE_CHECKING:
    from filelock import BaseFileLock

SCHEMA = 1
"""Version of the run-folder layout; a reader refuses a newer one by name."""

_ENDS = ("", "_without_loops")
_RACED = {"copy_accepted": "mean_accepted_copy", "neural_accepted": "mean_accepted_neural"}
_PRINTED = {"copy_steps": "copy_share", "draft_steps": "neural_share"}
_PRINTED |= {"copy_accepted": "mean_accepted_copy", "draft_accepted": "mean_accepted_neural"}

_OLD_NAMES: dict[str, dict[str, str]] = {
    "decoding": {
        "copy_step_share": "copy_share",
        "mean_accepted": "mean_accepted_copy",
        "neural_accepted": "mean_accepted_neural",
    },
    "rows": _RACED,
    "temperatures": _RACED,
    "table1": _PRINTED,
    "table2": _PRINTED,
}
"""Columns that version 0.1 called otherwise, by table; the first of each tells its tables."""

_VERSIONED = ("switchsd", "torch", "transformers", "transformer-lens", "scikit-learn")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` in one step, so that a reader never sees half a file.

    Non-finite numbers become null: JSON has no word for them.
    """
    text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write a text in one step (see `write_json`)."""
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is a `SwitchSDError` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SwitchSDError(f"{path} is damaged ({error}); delete it and run again") from error
    except OSError as error:
        raise SwitchSDError(f"cannot read {path}: {error.strerror or error}") from error


def read_as(kind: Any, value: Any) -> Any:
    """A JSON value as this type, a dataclass for instance; what is not in the type is left out.

    Raises:
        SwitchSDError: names the first field that is missing or wrong.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(map(str, wrong["loc"]))
        raise SwitchSDError(f"{field}: {wrong['msg']}") from error


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Write a table in one step (see `write_json`)."""
    _replace(path, lambda part: frame.to_parquet(part, index=False))


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a table; a damaged or missing one is a `SwitchSDError` that names it."""
    try:
        return pd.read_parquet(path, columns=columns)
    except FileNotFoundError as error:
        raise SwitchSDError(f"{path} does not exist; make the run again") from error
    except (OSError, ValueError) as error:  # pyarrow's errors derive from both
        raise SwitchSDError(f"{path} is damaged ({error}); delete it and run again") from error


def _lock(folder: Path) -> BaseFileLock:
    """An exclusive lock on a run folder; it goes with the object, and with the process."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise SwitchSDError(
            f"{folder} is being written by another run; let it finish, or end its process"
        ) from error
    except OSError as error:
        raise SwitchSDError(f"cannot write {folder}: {error.strerror or error}") from error
    return lock


@dataclass(frozen=True)
class Run:
    """One run folder; from `start` on it is this process's alone until the run is let go of."""

    path: Path
    _held: BaseFileLock | None = field(default=None, compare=False, repr=False)

    @classmethod
    def start(cls, path: Path, *, command: str, config: dict[str, Any], again: bool = False) -> Run:
        """Open `path` for writing: go on with an unfinished run of the same config, else begin.

        A finished run, or one of another config, is moved aside to `<name>-<time>` and never
        deleted. With `again` a finished one of the same config is gone on with too, as it is.
        """
        cls.check(path)
        run = cls(path, _lock(path) if path.is_dir() else None)
        manifest = run._manifest_or_nothing()
        same = manifest.get("command") == command and manifest.get("config") == _plain(config)
        if same and (again or manifest.get("state") == "running"):
            return run
        if run.exists():
            _move_aside(path)
            run = cls(path)  # its lock went with the folder
        try:
            (path / "figures").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SwitchSDError(f"cannot write {path}: {error.strerror or error}") from error
        if run._held is None:
            run = cls(path, _lock(path))
        write_json(
            path / "manifest.json",
            {
                "schema": SCHEMA,
                "command": command,
                "config": config,
                "state": "running",
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "versions": _versions(),
            },
        )
        return run

    @staticmethod
    def check(path: Path) -> None:
        """Raise unless `path` is free or a run folder: nothing else is ever moved or written to."""
        if not path.name or path.name == "..":
            raise SwitchSDError(f"{path} is no name for a run folder; choose one, as in runs/demo")
        try:
            taken = path.exists() and not path.is_dir()
            foreign = path.is_dir() and not Run(path).exists() and _holds_more_than_a_start(path)
        except OSError as error:
            raise SwitchSDError(f"cannot read {path}: {error.strerror or error}") from error
        if taken or foreign:
            raise SwitchSDError(f"{path} holds something that is no run; choose another folder")

    def exists(self) -> bool:
        """Whether a manifest lies there."""
        return (self.path / "manifest.json").is_file()

    def _manifest_or_nothing(self) -> dict[str, Any]:
        try:
            return self.manifest() if self.exists() else {}
        except SwitchSDError:  # a damaged one: the folder is moved aside whole
            return {}

    def manifest(self) -> dict[str, Any]:
        """The manifest; a missing, damaged or newer one is a `SwitchSDError`."""
        path = self.path / "manifest.json"
        if not path.is_file():
            raise SwitchSDError(f"{self.path} is not a run folder (it has no manifest.json)")
        manifest = read_json(path)
        schema = manifest.get("schema") if isinstance(manifest, dict) else None
        if not isinstance(schema, int):
            raise SwitchSDError(f"{path} is no manifest of a run; make the run again")
        if schema > SCHEMA:
            raise SwitchSDError(f"{path} was written by a newer switchsd; upgrade to read it")
        return manifest

    def describe(self, **keys: Any) -> None:
        """Add keys to the manifest."""
        write_json(self.path / "manifest.json", {**self.manifest(), **keys})

    def finish(self) -> None:
        """Mark the run complete."""
        self.describe(state="complete", finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        if self._held is not None:
            self._held.release()

    def metrics(self) -> dict[str, Any]:
        """The figures written so far."""
        path = self.path / "metrics.json"
        return read_json(path) if path.is_file() else {}

    def update_metrics(self, **keys: Any) -> None:
        """Set these keys of `metrics.json`; all others stay."""
        write_json(self.path / "metrics.json", {**self.metrics(), **keys})

    def has_table(self, name: str) -> bool:
        """Whether `<name>.parquet` is there."""
        return (self.path / f"{name}.parquet").is_file()

    def table(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read `<name>.parquet`; columns of version 0.1 have the names of today."""
        frame = read_parquet(self.path / f"{name}.parquet", columns)
        old = _OLD_NAMES.get(name, {})
        if next(iter(old), None) not in frame:
            return frame
        ends = {f"{column}{end}": f"{new}{end}" for column, new in old.items() for end in _ENDS}
        return frame.rename(columns=ends)

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write `<name>.parquet` whole or not at all."""
        write_parquet(self.path / f"{name}.parquet", frame)


def list_runs(folder: Path) -> list[Run]:
    """Every run folder directly inside `folder`, newest first; damaged ones included."""
    if not folder.is_dir():
        return []
    runs = [Run(child) for child in folder.iterdir() if (child / "manifest.json").is_file()]
    return sorted(runs, key=lambda run: (run.path / "manifest.json").stat().st_mtime, reverse=True)


def _replace(path: Path, write: Any) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        os.replace(part, path)
    except OSError as error:
        raise SwitchSDError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _holds_more_than_a_start(path: Path) -> bool:
    """Whether there is more than a start that was killed before its manifest leaves behind."""
    started = {".lock", ".manifest.json.part", "figures"}
    return any(child.name not in started for child in path.iterdir()) or any(
        (path / "figures").glob("*")
    )


def _move_aside(path: Path) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
    aside, tries = path.with_name(f"{path.name}-{stamp}"), 1
    while aside.exists():
        aside, tries = path.with_name(f"{path.name}-{stamp}-{tries}"), tries + 1
    path.rename(aside)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(_finite(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # numpy and torch scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def require(frame: pd.DataFrame, what: str, *columns: str) -> None:
    """Raise `SwitchSDError` unless `frame` has rows and these columns."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SwitchSDError(f"the {what} table lacks {', '.join(missing)}; make the run again")
    if frame.empty:
        raise SwitchSDError(f"the {what} table has no rows; make the run again")
