"""What the viewer reads: which runs there are, and one run's tables, checked. No Streamlit here.

A run folder is foreign input: its name must be a plain one, it must lie inside the chosen folder,
and its tables must hold the columns and kinds of values they promise. All else is a
`SwitchSDError` in words fit for the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...runs import Run, list_runs

_NUMBERS = {
    "tokens": ("position", "step", "score", "source"),
    "steps": ("step", "position", "proposed", "accepted", "emitted", "match_length"),
    "decoding": ("tokens_per_s", "speedup", "copy_share", "mean_accepted_copy", "n_prompts"),
    "copy_yield": ("position", "accepted"),
}
_WORDS = {
    "tokens": ("prompt_id", "policy", "text", "path"),
    "steps": ("prompt_id", "policy", "path"),
    "decoding": ("policy",),
    "copy_yield": ("prompt_id",),
}
_ANY = {"tokens": (), "steps": (), "decoding": ("token_exact",), "copy_yield": ("probe_on",)}
_MAY_LACK_VALUES = {"score", "copy_share", "mean_accepted_copy"}  # none where nothing is drafted


DECODED = ("demo",)
"""Commands whose runs hold decoded texts: tokens, steps and the decoding table."""

TRACED = ("trace",)
"""Commands whose runs hold counterfactual traces."""


def policies() -> list[str]:
    """Every policy that can decode, the lab's own first, then one's own."""
    from ...decoding.policies import POLICIES

    return sorted(POLICIES, key=lambda name: (name != "switchsd", not POLICIES[name].own))


@dataclass(frozen=True)
class RunEntry:
    """One folder of the list: its name and whether it can be opened."""

    name: str
    state: str
    """`complete`, `running` or `damaged`."""
    problem: str = ""
    """Why a damaged one cannot be opened."""
    command: str = ""
    """What made it; empty where its manifest cannot be read."""
    fingerprint: str = ""
    """Of the model it is about; empty where it does not say."""


@dataclass(frozen=True)
class DecodeData:
    """What the page about one run's decoding shows."""

    model: str
    dtype: str
    probe: Mapping[str, Any]
    """`site`, `tau`, `auroc` …; empty where the run has no probe."""
    tokens: pd.DataFrame
    steps: pd.DataFrame
    decoding: pd.DataFrame
    copy_yield: pd.DataFrame
    """What copying would have had accepted at every position; empty where the run has none."""

    def policies(self) -> list[str]:
        """Policies that have tokens, SwitchSD first, then in the order they were run."""
        return sorted(self.tokens["policy"].unique(), key=lambda name: name != "switchsd")

    def prompts(self, policy: str) -> list[str]:
        """Prompts that this policy decoded, in the order they were run."""
        return list(self.tokens.loc[self.tokens["policy"] == policy, "prompt_id"].unique())

    def selection(
        self, policy: str, prompt_id: str | None = None
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The tokens and steps of a policy, on one prompt or (None) on all."""
        tokens = self.tokens[self.tokens["policy"] == policy]
        steps = self.steps[self.steps["policy"] == policy]
        if prompt_id is not None:
            tokens = tokens[tokens["prompt_id"] == prompt_id]
            steps = steps[steps["prompt_id"] == prompt_id]
        return tokens, steps

    def tau(self) -> float | None:
        """The gate's threshold, where the run says one."""
        tau = self.probe.get("tau")
        return float(tau) if isinstance(tau, (int, float)) else None


def runs_folder(arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    """The folder of runs: `--runs FOLDER`, else `SWITCHSD_RUNS`, else `runs` where one is."""
    parser = argparse.ArgumentParser(prog="viewer", exit_on_error=False)
    parser.add_argument("--runs")
    try:
        given, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise SwitchSDError(f"{error}; start the viewer with -- --runs FOLDER") from error
    if rest:
        raise SwitchSDError(f"unknown argument {rest[0]!r}; the viewer takes only --runs FOLDER")
    return Path(given.runs or environment.get("SWITCHSD_RUNS") or "runs")


def list_entries(folder: Path, commands: Sequence[str] | None = None) -> list[RunEntry]:
    """Every run in the folder, newest first, with what is wrong with the damaged ones.

    Args:
        folder: the folder of runs.
        commands: only runs of these, and damaged ones; None: of any.
    """
    entries = [_entry(folder, run) for run in list_runs(folder)]
    return [
        entry
        for entry in entries
        if commands is None or entry.state == "damaged" or entry.command in commands
    ]


def newest_complete(entries: Sequence[RunEntry]) -> str | None:
    """The run to open first: the newest complete one, else the newest that can be opened."""
    ranked = sorted(
        entries,
        key=lambda entry: (
            ("complete", "running", "damaged").index(entry.state),
            entry.command in TRACED,  # reading one takes torch: not before the reader asks
        ),
    )
    return ranked[0].name if ranked else None


def open_run(folder: Path, name: str) -> Run:
    """The run called `name` directly inside `folder`; any other place is refused."""
    if not name or name in (".", "..") or Path(name).name != name or "\\" in name or "\0" in name:
        raise SwitchSDError(f"{name!r} is not the name of a run; choose one from the list")
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise SwitchSDError(f"{name!r} leads out of {folder}; choose a run from the list")
    for child in (*path.glob("*"), *path.glob("positions/*")):
        if child.is_symlink() and not child.resolve().is_relative_to(folder.resolve()):
            raise SwitchSDError(
                f"{name!r} holds a link out of {folder} ({child.name}): it is not opened"
            )
    run = Run(path)
    run.manifest()
    return run


def load_decode(run: Run) -> DecodeData:
    """Read and check what the page about decoding shows."""
    metrics = run.metrics()
    if not isinstance(metrics, dict):
        raise SwitchSDError(f"{run.path / 'metrics.json'} is damaged; make the run again")
    probe = metrics.get("probe")
    return DecodeData(
        model=str(metrics.get("model", "unknown model")),
        dtype=str(metrics.get("dtype", "")),
        probe=probe if isinstance(probe, dict) else {},
        tokens=_table(run, "tokens"),
        steps=_table(run, "steps"),
        decoding=_table(run, "decoding"),
        copy_yield=_table(run, "copy_yield") if run.has_table("copy_yield") else pd.DataFrame(),
    )


def content_key(run: Run) -> tuple[str, tuple[int, ...]]:
    """Changes when the run's files do: what a cache of what was read is kept by."""
    paths = sorted(path for path in run.path.iterdir() if path.suffix in (".json", ".parquet"))
    return str(run.path.resolve()), tuple(path.stat().st_mtime_ns for path in paths)


def _entry(folder: Path, run: Run) -> RunEntry:
    name = run.path.name
    try:
        manifest = open_run(folder, name).manifest()
    except SwitchSDError as error:
        return RunEntry(name, "damaged", str(error))
    model = manifest.get("model")
    return RunEntry(
        name,
        "complete" if manifest.get("state") == "complete" else "running",
        command=str(manifest.get("command", "")),
        fingerprint=str(model.get("fingerprint", "")) if isinstance(model, dict) else "",
    )


def _table(run: Run, name: str) -> pd.DataFrame:
    if not run.has_table(name):
        raise SwitchSDError(f"{run.path.name} has no {name} table yet; let the run finish")
    numbers, words = _NUMBERS[name], _WORDS[name]
    frame = run.table(name)
    lacking = [column for column in (*words, *numbers, *_ANY[name]) if column not in frame]
    if lacking:
        raise SwitchSDError(
            f"{run.path.name}'s {name} table lacks {', '.join(lacking)}: it was made by another "
            f"version of switchsd{_version_of(run)}; make the run again"
        )
    for column in numbers:
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise _damaged(run, name, column)
        if column not in _MAY_LACK_VALUES and not np.isfinite(frame[column].to_numpy()).all():
            raise _damaged(run, name, column)
    for column in words:
        if not _all_words(frame[column]):
            raise _damaged(run, name, column)
    if frame.empty and name != "copy_yield":  # short texts leave no room for a whole copy
        raise SwitchSDError(f"{run.path.name} has an empty {name} table; make the run again")
    return frame


def _all_words(column: pd.Series) -> bool:
    if isinstance(column.dtype, pd.StringDtype):
        return not column.isna().any()
    return bool(column.map(lambda value: isinstance(value, str)).all())


def _version_of(run: Run) -> str:
    versions = run.manifest().get("versions")
    said = versions.get("switchsd") if isinstance(versions, dict) else None
    return f" ({said})" if said else ""


def _damaged(run: Run, table: str, column: str) -> SwitchSDError:
    return SwitchSDError(
        f"{run.path / table}.parquet is damaged (its column {column} holds the wrong kind of "
        "values); make the run again"
    )
