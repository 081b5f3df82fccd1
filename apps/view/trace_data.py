"""Counterfactual traces beside a run: which one holds a prompt, and what a threshold would do.

Reading a trace's tables is quick. Replaying needs modules that import torch, which takes seconds:
`warm` does it in the background, once the page is there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from ...analysis.traces.trace import CounterfactualTrace, read_prompts
from ...data.token_texts import token_texts
from ...errors import SwitchSDError
from ...runs import Run
from .run_data import (
    TRACED,
    DecodeData,
    RunEntry,
    content_key,
    load_decode,
    open_run,
)

if TYPE_CHECKING:
    from ...analysis.cost.profile import LatencyProfile

HOW_TO_TRACE = "switchsd trace --sets humaneval --run {folder}/trace-demo"

_importing = threading.Lock()

_warmed = False

_PAINT_SECONDS = 3.0


def prompts_of(run: Run) -> pd.DataFrame:
    """A trace's prompts: prompt_id, set, ids, n_prompt …

    Raises:
        SwitchSDError: none there yet, or a damaged table.
    """
    return _prompts(*content_key(run))


def positions_of(run: Run, prompt_id: str) -> pd.DataFrame:
    """The positions of one traced prompt.

    Raises:
        SwitchSDError: no such prompt, or a damaged table.
    """
    return CounterfactualTrace.read(run.path, prompt_ids=[prompt_id]).positions


def trace_of(
    folder: Path, entries: Sequence[RunEntry], fingerprint: str, prompt_id: str, ids: list[int]
) -> Run | None:
    """The newest complete trace of that model and prompt whose text goes with `ids`."""
    for entry in entries:
        if entry.command not in TRACED or entry.state != "complete":
            continue
        if fingerprint and entry.fingerprint and entry.fingerprint != fingerprint:
            continue
        try:
            run = open_run(folder, entry.name)
            rows = prompts_of(run)
        except SwitchSDError:  # a damaged one: the next will do
            continue
        rows = rows[rows["prompt_id"] == prompt_id]
        if len(rows):
            text = [int(token) for token in rows["ids"].iloc[0]]
            both = min(len(text), len(ids))
            if text[:both] == ids[:both]:
                return run
    return None


def texts_of(ids: Sequence[int], model: str, known: pd.DataFrame | None = None) -> list[str]:
    """Each token's text: by the default model's tokenizer, else as a run's table has it.

    Args:
        ids: of the text.
        model: the name its run gives; only the default model's tokenizer is read.
        known: a tokens table with ids and texts.
    """
    decode = _decoder(model)
    if decode is not None:
        return token_texts(ids, decode)
    words: dict[int, str] = {}
    if known is not None and "id" in known:
        words = dict(zip(known["id"], known["text"], strict=True))
    return [words.get(token, f"⟨{token}⟩") for token in ids]


def profile_of(folder: Path, fingerprint: str, dtype: str | None = None) -> LatencyProfile | None:
    """The first latency profile in the folder of runs that fits the model and its dtype."""
    from ...analysis.cost.profile import LatencyProfile

    for path in _profiles(folder):
        if folder.resolve() not in path.resolve().parents:
            continue
        try:
            profile = LatencyProfile.load(path)
            profile.check(fingerprint)
        except SwitchSDError:  # another model's, or damaged: the next will do
            continue
        if dtype is None or profile.about.get("dtype", dtype) == dtype:
            return profile
    return None


def profiles_at(folder: Path) -> tuple[int, ...]:
    """When the folder's latency profiles were written; another tuple once there is another one."""
    return tuple(path.stat().st_mtime_ns for path in _profiles(folder))


def _profiles(folder: Path) -> list[Path]:
    found = [folder / "profile.json", *sorted(folder.glob("*/profile.json"))]
    return [path for path in found if path.is_file()]


def traced(run: Run) -> CounterfactualTrace:
    """The trace in memory, read once."""
    return _traced(*content_key(run))


def warm() -> None:
    """Import what replay needs in the background, once the page has had time to be painted."""
    global _warmed
    if _warmed:
        return
    _warmed = True

    def load() -> None:
        with _importing:
            from ...analysis.replay import text as replayed_text  # noqa: F401

    timer = threading.Timer(_PAINT_SECONDS, load)
    timer.daemon = True
    timer.start()


@st.cache_resource(max_entries=8, show_spinner=False)
def _prompts(path: str, changed: tuple[int, ...]) -> pd.DataFrame:
    return read_prompts(Path(path))[1]


@st.cache_resource(max_entries=2, show_spinner="Reading the trace…")
def _traced(path: str, changed: tuple[int, ...]) -> CounterfactualTrace:
    return CounterfactualTrace.read(Path(path))


@st.cache_resource(max_entries=2, show_spinner=False)
def _decoder(model: str) -> Any:
    from ...probing.default_model import DEFAULT_MODEL, cache_dir, default_model_folder

    if model != DEFAULT_MODEL or not any(cache_dir().glob(f"{DEFAULT_MODEL}-*")):
        return None
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(default_model_folder() / "tokenizer.json"))
    return lambda ids: read.decode(ids, skip_special_tokens=False)


def load(run: Run) -> DecodeData:
    """The run's decoded texts, read once."""
    return _read(*content_key(run))


@st.cache_resource(max_entries=4, show_spinner="Reading the run…")
def _read(path: str, changed: tuple[int, ...]) -> DecodeData:
    return load_decode(Run(Path(path)))
