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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...errors import SwitchSDError
from ...probing.lens import Lens
from ...runs import Run, read_parquet

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


_PROMPT_COLUMNS = ("prompt_id", "set", "ids", "n_prompt")

_POSITION_COLUMNS = ("prompt_id", "position", "limit", "score", "gap")

_KEPT = 256  # columns of settings that were used last

T = TypeVar("T")

_TRACE_AGAIN = "make it again with `switchsd trace`"


@dataclass(frozen=True)
class Traced:
    """The rows of a trace and what they are read with.

    Attributes:
        prompts: prompt_id, set, ids (prompt and greedy continuation), n_prompt; one row a prompt.
        positions: the trace's columns, prompts in the same order.
        stops: ids that end a text; a copy does not go on behind one.
        fingerprint: of the target.
        tau: threshold of the probe whose scores are in; None if the trace does not say.
        draft_vocab_size: of the EAGLE-3 head; None if the trace does not say.
        digests: of the probe ("probe") and the drafts ("eagle3", "sps"), as far as it says.
        dtype: it was decoded in; None if it does not say.
        max_new_tokens: its budget; None if it does not say.

    Raises:
        SwitchSDError: no prompts, missing columns, or prompts whose rows are not all there.
    """

    prompts: pd.DataFrame
    positions: pd.DataFrame
    stops: frozenset[int] = frozenset()
    fingerprint: str = ""
    tau: float | None = None
    draft_vocab_size: int | None = None
    digests: dict[str, str | None] = field(default_factory=dict)
    dtype: str | None = None
    max_new_tokens: int | None = None
    _kept: dict[Hashable, tuple[Any, tuple]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if not len(self.prompts):
            raise SwitchSDError("the trace has no prompts: trace at least one")
        for frame, needed in (
            (self.prompts, _PROMPT_COLUMNS),
            (self.positions, _POSITION_COLUMNS),
        ):
            missing = [name for name in needed if name not in frame]
            if missing:
                raise SwitchSDError(f"the trace lacks {', '.join(missing)}: {_TRACE_AGAIN}")
        expected = np.concatenate(
            [
                np.arange(int(n_prompt), len(ids))
                for ids, n_prompt in zip(self.prompts["ids"], self.prompts["n_prompt"], strict=True)
            ]
        )
        if not np.array_equal(expected, self.positions["position"].to_numpy()):
            raise SwitchSDError(f"the trace's positions are not all there: {_TRACE_AGAIN}")

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def read(cls, folder: Path) -> Traced:
        """Read a trace's run folder.

        Raises:
            SwitchSDError: no trace, an unfinished or sampled one, or damaged tables.
        """
        opened = open_trace(folder)
        about = opened.settings
        probe, head = about["probe"] or {}, about["eagle3"] or {}
        return cls(
            opened.prompts,
            opened.positions(),
            stops=frozenset(about.get("eos_ids") or ()),
            fingerprint=about["model"],
            tau=probe.get("tau"),
            draft_vocab_size=head.get("draft_vocab_size"),
            digests={
                name: (about[name] or {}).get("digest") for name in ("probe", "eagle3", "sps")
            },
            dtype=about.get("dtype"),
            max_new_tokens=about.get("max_new_tokens"),
        )

    @cached_property
    def starts(self) -> Int[np.ndarray, " prompt"]:
        """Each prompt's first row."""
        return np.concatenate([[0], np.cumsum(self._lengths)[:-1]])

    @cached_property
    def prompt(self) -> Int[np.ndarray, " row"]:
        """Number of each row's prompt."""
        return np.repeat(np.arange(len(self.prompts)), self._lengths)

    @cached_property
    def committed(self) -> Int[np.ndarray, " row"]:
        """Committed tokens before a step that begins here."""
        return self.positions["position"].to_numpy(np.int64)

    @cached_property
    def n_prompt(self) -> Int[np.ndarray, " row"]:
        """Tokens of each row's prompt."""
        return self.prompts["n_prompt"].to_numpy(np.int64)[self.prompt]

    @cached_property
    def remaining(self) -> Int[np.ndarray, " row"]:
        """Tokens of the text from here on; at least 1."""
        return (self.starts + self._lengths)[self.prompt] - np.arange(len(self))

    @cached_property
    def limit(self) -> Int[np.ndarray, " row"]:
        """How deep a draft may be: budget and context, as the decode loop limits it."""
        return np.maximum(self.positions["limit"].to_numpy(np.int64), 0)

    @cached_property
    def score(self) -> Float[np.ndarray, " row"]:
        """The probe's score at the newest processed position; NaN without one."""
        return self.positions["score"].to_numpy(np.float64)

    @cached_property
    def gap(self) -> Float[np.ndarray, " row"]:
        """Between the two largest logits that chose the token here."""
        return self.positions["gap"].to_numpy(np.float64)

    @cached_property
    def texts(self) -> list[list[int]]:
        """Ids of each prompt and its continuation."""
        return [[int(token) for token in ids] for ids in self.prompts["ids"]]

    def digest(self, kind: str) -> str | None:
        """Of the weights of a draft; a tree is the EAGLE-3 head's."""
        return self.digests.get("eagle3" if kind.startswith("tree_") else kind)

    @property
    def drafts(self) -> tuple[str, ...]:
        """Kinds of neural drafts it has accepted lengths of."""
        return tuple(
            name
            for name in map(str, self.positions)
            if name in ("eagle3", "sps") or (name.startswith("tree_") and name.count("_") == 3)
        )

    def accepted(self, kind: str) -> Int[np.ndarray, " row"]:
        """Accepted length of a draft of that kind, as long as it was traced.

        Raises:
            SwitchSDError: a kind that was not traced.
        """
        if kind not in self.drafts:
            raise SwitchSDError(
                f"the trace has no draft {kind!r} (it has {', '.join(self.drafts) or 'none'}): "
                "trace it, or choose another"
            )
        return self.positions[kind].to_numpy(np.int64)

    def room(self, kind: str) -> Int[np.ndarray, " row"]:
        """How deep the drafter of that kind could draft, the limit included."""
        name = f"{'sps' if kind == 'sps' else 'eagle3'}_room"
        room = self.limit
        if name in self.positions:
            room = np.clip(self.positions[name].to_numpy(np.int64), 0, room)
        # before the second token a head has no feature to draft from
        return room if kind == "sps" else np.where(self.committed < 2, 0, room)

    def lists(self, name: str, width: int) -> Int[np.ndarray, "row candidate"]:
        """A column of lists as a rectangle, filled with 0."""
        column = [np.asarray(values, dtype=np.int64)[:width] for values in self.positions[name]]
        lengths = np.array([len(values) for values in column])
        filled = np.zeros((len(column), width), dtype=np.int64)
        filled[np.arange(width) < lengths[:, None]] = np.concatenate(column)
        return filled

    def once(self, key: Hashable, make: Callable[[], T], *alive: object) -> T:
        """What `make` gives, computed once for each key: settings share most of their columns.

        Args:
            key: names the value; may hold the `id` of what is in `alive`.
            make: makes it.
            alive: kept as long as the value is, so that its `id` stays its own.
        """
        found = self._kept.pop(key, None)
        if found is None:
            found = (make(), alive)
        self._kept[key] = found  # the latest last
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return found[0]

    @cached_property
    def _lengths(self) -> Int[np.ndarray, " prompt"]:
        ids = self.prompts["ids"].map(len).to_numpy(np.int64)
        return ids - self.prompts["n_prompt"].to_numpy(np.int64)


def some_prompts(trace: Traced, keep: Bool[np.ndarray, " prompt"]) -> Traced:
    """The trace of the prompts to keep."""
    return Traced(
        trace.prompts[keep].reset_index(drop=True),
        trace.positions[keep[trace.prompt]].reset_index(drop=True),
        trace.stops,
        trace.fingerprint,
        trace.tau,
        trace.draft_vocab_size,
        trace.digests,
        trace.dtype,
        trace.max_new_tokens,
    )
