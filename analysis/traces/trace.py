"""A finished counterfactual trace: read from its run folder, and what replay reads it with.

runs/trace/manifest.json                `config`: settings, and what model and drafts they are of
runs/trace/asked/<set>.parquet          the prompts as they were asked
runs/trace/positions/<number>.parquet   one prompt's table (`columns.positions_table`)
runs/trace/texts/<number>.parquet       its text; with both a prompt is finished
runs/trace/prompts.parquet              all texts, once all are there
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...errors import SwitchSDError
from ...runs import Run, read_parquet

if TYPE_CHECKING:
    from ...probing.lens import Lens

COMMAND = "trace"

_SETTINGS = {"max_new_tokens", "ns", "sampling", "model", "tokenizer", "eagle3", "sps", "probe"}

_PROMPT_COLUMNS = ("prompt_id", "set", "ids", "n_prompt")

_POSITION_COLUMNS = ("prompt_id", "position", "limit", "score", "gap")

_KEPT = 256  # columns of settings that were used last

T = TypeVar("T")

_TRACE_AGAIN = "make it again with `switchsd trace`"


@dataclass(frozen=True)
class CounterfactualTrace:
    """Greedy texts, and for every committed length within them what each path is worth there.

    Attributes:
        prompts: prompt_id, set, ids (prompt and greedy continuation), n_prompt, and from a run
            folder finish, max_new_tokens, n_ctx, generation_s, trace_s; one row a prompt.
        positions: `columns.positions_table` of each, prompts in the same order.
        settings: what was traced, of which model, drafts and probe (the manifest's `config`).

    Raises:
        SwitchSDError: no prompts, missing columns, or prompts whose rows are not all there.
    """

    prompts: pd.DataFrame
    positions: pd.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    _kept: dict[Hashable, tuple[Any, tuple]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        _check_prompts(self.prompts)
        _check_columns(self.positions, _POSITION_COLUMNS)
        owners = self.prompts["prompt_id"].to_numpy()[self.prompt]
        places = np.arange(len(self.prompt)) - self.starts[self.prompt] + self.n_prompt
        expected = pd.DataFrame({"prompt_id": owners, "position": places})
        found = self.positions[["prompt_id", "position"]].reset_index(drop=True)
        wrong = (expected.reindex(found.index) != found).any(axis=1)
        if wrong.any() or len(found) != len(expected):
            first = owners[min(int(wrong.argmax()) if wrong.any() else len(found), len(owners) - 1)]
            raise SwitchSDError(
                f"the trace's positions are not all there, or others', from those of {first} on: "
                f"{_TRACE_AGAIN}"
            )

    def __len__(self) -> int:
        return len(self.positions)

    @classmethod
    def read(
        cls,
        folder: Path,
        lens: Lens | None = None,
        *,
        prompt_ids: Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
    ) -> CounterfactualTrace:
        """Read a trace's run folder.

        Args:
            folder: of the run.
            lens: check that it is this model's and tokenizer's.
            prompt_ids: only these prompts; None: all.
            columns: of the positions beside those that every trace has; None: all.

        Raises:
            SwitchSDError: no trace there, an unfinished or damaged one, one that was sampled,
                another model's or tokenizer's, or no such prompt.
        """
        settings, prompts = read_prompts(folder, lens)
        numbers = list(range(len(prompts)))
        if prompt_ids is not None:
            number_of = dict(zip(prompts["prompt_id"], numbers, strict=True))
            numbers = [_known(folder, number_of, prompt_id) for prompt_id in prompt_ids]
        wanted = None if columns is None else [*_POSITION_COLUMNS, *columns]
        tables = [read_parquet(positions_file(folder, number), wanted) for number in numbers]
        try:
            return cls(
                prompts.iloc[numbers].reset_index(drop=True),
                pd.concat(tables, ignore_index=True),
                settings,
            )
        except SwitchSDError as error:
            raise SwitchSDError(f"{folder}: {error}") from error

    def only(self, keep: Bool[np.ndarray, " prompt"]) -> CounterfactualTrace:
        """The trace of the prompts to keep."""
        return replace(
            self,
            prompts=self.prompts[keep].reset_index(drop=True),
            positions=self.positions[keep[self.prompt]].reset_index(drop=True),
        )

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end a text; a copy does not go on behind one."""
        return frozenset(self.settings.get("eos_ids") or ())

    @property
    def fingerprint(self) -> str:
        """Of the target; empty if the trace does not say, as the rest is None then."""
        return str(self.settings.get("model", ""))

    @property
    def tau(self) -> float | None:
        """Threshold of the probe whose scores are in."""
        return (self.settings.get("probe") or {}).get("tau")

    @property
    def draft_vocab_size(self) -> int | None:
        """Of the EAGLE-3 head."""
        return (self.settings.get("eagle3") or {}).get("draft_vocab_size")

    @property
    def dtype(self) -> str | None:
        """It was decoded in."""
        return self.settings.get("dtype")

    @property
    def max_new_tokens(self) -> int | None:
        """Its budget."""
        return self.settings.get("max_new_tokens")

    @property
    def digests(self) -> dict[str, str | None]:
        """Of the probe ("probe") and the drafts ("eagle3", "sps")."""
        return {
            name: (self.settings.get(name) or {}).get("digest")
            for name in ("probe", "eagle3", "sps")
        }

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
        if kind in self.own:
            return self.own[kind].get("digest")
        return self.digests.get("eagle3" if kind.startswith("tree_") else kind)

    @property
    def drafts(self) -> tuple[str, ...]:
        """Kinds of neural drafts it has accepted lengths of."""
        return tuple(
            name
            for name in map(str, self.positions)
            if name in ("eagle3", "sps")
            or (name.startswith("tree_") and name.count("_") == 3)
            or f"{name}_proposed" in self.positions
        )

    @property
    def own(self) -> Mapping[str, Mapping[str, Any]]:
        """Depth and digest of the drafters of one's own that were traced, by kind."""
        return self.settings.get("own") or {}

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


def read_prompts(folder: Path, lens: Lens | None = None) -> tuple[dict[str, Any], pd.DataFrame]:
    """What was traced, and the texts: a trace without its positions.

    Raises:
        SwitchSDError: as of `CounterfactualTrace.read`.
    """
    run = Run(folder)
    manifest = run.manifest()
    if manifest.get("command") != COMMAND:
        raise SwitchSDError(
            f"{folder} is a run of `switchsd {manifest.get('command')}`, not a counterfactual "
            "trace: make one with `switchsd trace`"
        )
    settings = manifest.get("config")
    if not isinstance(settings, dict) or not set(settings) >= _SETTINGS:
        raise SwitchSDError(f"{folder / 'manifest.json'} lacks the trace's settings; trace again")
    temperature = settings["sampling"].get("temperature")
    if temperature != 0:
        raise SwitchSDError(
            f"{folder} was sampled (temperature {temperature}): which text another policy would "
            "have drawn is not known from it; trace greedily"
        )
    if manifest.get("state") != "complete":
        raise SwitchSDError(f"{folder} is unfinished; the same `switchsd trace` goes on with it")
    if lens is not None:
        _check_target(folder, settings, lens)
    prompts = run.table("prompts")
    _check_prompts(prompts)
    return settings, prompts


def tokenizer_digest(lens: Lens) -> str | None:
    """What a tokenizer can be known by: a hash of its vocabulary; None without one."""
    if lens.tokenizer is None:
        return None
    vocabulary = sorted(lens.tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:24]


def positions_file(folder: Path, number: int) -> Path:
    """Where the table of a trace's prompt lies."""
    return folder / "positions" / f"{number:04d}.parquet"


def _check_prompts(prompts: pd.DataFrame) -> None:
    if not len(prompts):
        raise SwitchSDError("the trace has no prompts: trace at least one")
    _check_columns(prompts, _PROMPT_COLUMNS)


def _check_columns(table: pd.DataFrame, needed: Iterable[str]) -> None:
    missing = [name for name in needed if name not in table]
    if missing:
        raise SwitchSDError(f"the trace lacks {', '.join(missing)}: {_TRACE_AGAIN}")


def _known(folder: Path, number_of: Mapping[str, int], prompt_id: str) -> int:
    if prompt_id not in number_of:
        raise SwitchSDError(
            f"{folder} holds no prompt {prompt_id!r}; it has {len(number_of)}, the first "
            f"{next(iter(number_of))!r}"
        )
    return number_of[prompt_id]


def _check_target(folder: Path, settings: dict[str, Any], lens: Lens) -> None:
    if settings["model"] != lens.fingerprint:
        raise SwitchSDError(
            f"{folder} is a trace of another model ({str(settings['model'])[:8]}), not of "
            f"{lens.name} ({lens.fingerprint[:8]}): trace this one with `switchsd trace`"
        )
    if settings["tokenizer"] != tokenizer_digest(lens):
        raise SwitchSDError(
            f"{folder} was traced with another tokenizer than {lens.name} has now: its ids mean "
            "other tokens; trace again"
        )
