"""A finished counterfactual trace, read back from its run folder.

runs/trace/manifest.json                `config`: settings, and what model and drafts they are of
runs/trace/asked/<set>.parquet          the prompts as they were asked
runs/trace/positions/<number>.parquet   one prompt's table (`counterfactual.positions_table`)
runs/trace/texts/<number>.parquet       its text; with both a prompt is finished
runs/trace/prompts.parquet              all texts, once all are there
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import SwitchSDError
from ..probing.lens import Lens
from ..runs import Run, read_parquet

COMMAND = "trace"
_PROMPTS = {"prompt_id", "set", "ids", "n_prompt", "finish", "max_new_tokens", "n_ctx"}
_SETTINGS = {"max_new_tokens", "ns", "sampling", "model", "tokenizer", "eagle3", "sps", "probe"}


@dataclass(frozen=True)
class CounterfactualTrace:
    """A finished trace; made by `open_trace`.

    Attributes:
        path: its run folder.
        settings: what was traced, of which model and drafts (the manifest's `config`).
        prompts: prompt_id, set, ids (prompt and greedy continuation), n_prompt, finish,
            max_new_tokens, n_ctx, generation_s, trace_s.
    """

    path: Path
    settings: dict[str, Any]
    prompts: pd.DataFrame

    def positions(self, prompt_id: str | None = None) -> pd.DataFrame:
        """The table of one prompt, or of all, one after the other.

        Raises:
            SwitchSDError: no such prompt, or a table that is missing, damaged or another's.
        """
        if prompt_id is None:
            return pd.concat(
                [self._table(number) for number in range(len(self.prompts))], ignore_index=True
            )
        found = self.prompts.index[self.prompts["prompt_id"] == prompt_id]
        if not len(found):
            raise SwitchSDError(
                f"{self.path} holds no prompt {prompt_id!r}; it has {len(self.prompts)}, the first "
                f"{self.prompts['prompt_id'].iloc[0]!r}"
            )
        return self._table(int(found[0]))

    def _table(self, number: int) -> pd.DataFrame:
        file = positions_file(self.path, number)
        table = read_parquet(file)
        prompt = self.prompts.iloc[number]
        expected = list(range(prompt["n_prompt"], len(prompt["ids"])))
        mine = {"prompt_id", "position"} <= set(table.columns) and (
            table["position"].tolist() == expected
            and set(table["prompt_id"]) == {prompt["prompt_id"]}
        )
        if not mine:
            raise SwitchSDError(
                f"{file} is not the table of {prompt['prompt_id']}; trace the prompts again"
            )
        return table


def open_trace(path: Path, lens: Lens | None = None) -> CounterfactualTrace:
    """Read a finished trace.

    Args:
        path: its run folder.
        lens: check that it is this model's and tokenizer's.

    Raises:
        SwitchSDError: no trace there, an unfinished or damaged one, one that was sampled, or
            another model's or tokenizer's.
    """
    run = Run(path)
    manifest = run.manifest()
    if manifest.get("command") != COMMAND:
        raise SwitchSDError(
            f"{path} is a run of `switchsd {manifest.get('command')}`, not a counterfactual trace: "
            "make one with `switchsd trace`"
        )
    settings = manifest.get("config")
    if not isinstance(settings, dict) or not set(settings) >= _SETTINGS:
        raise SwitchSDError(f"{path / 'manifest.json'} lacks the trace's settings; trace again")
    if settings["sampling"].get("temperature") != 0:
        raise SwitchSDError(
            f"{path} was sampled (temperature {settings['sampling'].get('temperature')}): which "
            "text another policy would have drawn is not known from it; trace greedily"
        )
    if manifest.get("state") != "complete":
        raise SwitchSDError(f"{path} is unfinished; the same `switchsd trace` goes on with it")
    if lens is not None:
        _check_target(path, settings, lens)
    prompts = run.table("prompts")
    if prompts.empty or not set(prompts.columns) >= _PROMPTS:
        raise SwitchSDError(f"{path / 'prompts.parquet'} is no table of traced prompts")
    return CounterfactualTrace(path, settings, prompts)


def tokenizer_digest(lens: Lens) -> str | None:
    """What a tokenizer can be known by: a hash of its vocabulary; None without one."""
    if lens.tokenizer is None:
        return None
    vocabulary = sorted(lens.tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:24]


def positions_file(path: Path, number: int) -> Path:
    """Where the table of a trace's prompt lies."""
    return path / "positions" / f"{number:04d}.parquet"


def _check_target(path: Path, settings: dict[str, Any], lens: Lens) -> None:
    if settings["model"] != lens.fingerprint:
        raise SwitchSDError(
            f"{path} is a trace of another model ({str(settings['model'])[:8]}), not of "
            f"{lens.name} ({lens.fingerprint[:8]}): trace this one with `switchsd trace`"
        )
    if settings["tokenizer"] != tokenizer_digest(lens):
        raise SwitchSDError(
            f"{path} was traced with another tokenizer than {lens.name} has now: its ids mean "
            "other tokens; trace again"
        )
