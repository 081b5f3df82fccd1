"""Read streams of a corpus in bulk and keep them in an activation store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...progress import Progress, silent
from ..lens import Lens
from .store import (
    ActivationStore,
    StoreKey,
    create_or_resume,
    ids_digest,
    open_store,
    planned_bytes,
)

LOOK_BACK = 2
"""Positions before the completion that are kept too: the largest label offset in use."""


def captured_positions(prompt_length: int, length: int) -> range:
    """Positions of a corpus row whose activations are kept: all that answer for a new token."""
    return range(max(0, prompt_length - LOOK_BACK), length)


def _positions(corpus: pd.DataFrame, row: int, whole: bool) -> range:
    prompt = len(corpus["prompt_ids"].iloc[row])
    length = prompt + len(corpus["completion_ids"].iloc[row])
    return range(length) if whole else captured_positions(prompt, length)


def planned_store_bytes(
    lens: Lens,
    corpus: pd.DataFrame,
    sites: Sequence[str],
    dtype: str = "float16",
    *,
    whole: bool = False,
) -> int:
    """Size on disk that `capture` will write."""
    return planned_bytes(
        _n_rows(corpus, whole), {site: lens.site_width(site) for site in sites}, dtype
    )


def capture(
    lens: Lens,
    corpus: pd.DataFrame,
    sites: Sequence[str],
    folder: Path,
    *,
    store_dtype: str = "float16",
    whole: bool = False,
    buffer_bytes: int = 256 * 2**20,
    progress: Progress = silent,
) -> ActivationStore:
    """Run the corpus through the model up to the last layer needed and store `sites`.

    A store that is complete is opened as it is, also if it holds more sites; an unfinished one
    goes on where it stopped.

    Args:
        lens: the model the corpus was completed by (or another one, for controls).
        corpus: prompt_ids and completion_ids, one row a text.
        sites: hook points to keep.
        folder: of the store.
        store_dtype: float16, bfloat16 or float32.
        whole: keep the prompt's positions too.
        buffer_bytes: bound on activations held in memory, in the buffer and in a batch each.
        progress: told the number of rows (tokens).

    Returns:
        The store; its columns are `row` (index into `corpus`) and `position`.

    Raises:
        SwitchSDError: unknown sites, a foreign folder, another writer, a full disk, activations
            that are not finite.
    """
    lens.check_sites(sites)
    key = StoreKey(
        model=lens.fingerprint,
        sites=tuple(sites),
        dtype=store_dtype,
        attention=f"{lens.backend}/{lens.attention}/{lens.dtype}",
        corpus=ids_digest([*corpus["prompt_ids"], *corpus["completion_ids"]]),
        rows="every token" if whole else f"completion tokens and {LOOK_BACK} before",
        versions={name: version(name) for name in ("torch", "transformers")},
    )
    if (folder / "manifest.json").is_file():
        there = open_store(folder, partial=True)
        if set(sites) <= set(there.key.sites):
            sites = there.key.sites  # it may hold more than are asked for
            key = replace(key, sites=sites)
        there = open_store(folder, key=key, partial=True)
        if there.complete:
            return there
    total, done = _n_rows(corpus, whole), 0
    widths = {site: lens.site_width(site) for site in sites}
    with create_or_resume(
        folder, key, d=widths, expected_rows=total, buffer_bytes=buffer_bytes
    ) as writer:
        finished = writer.done_blocks()
        todo = []
        for row in range(len(corpus)):
            if f"{row}" in finished:
                done += len(_positions(corpus, row, whole))
            else:
                todo.append(row)
        batches = text_batches(
            lens, corpus, sites, rows=todo, whole=whole, buffer_bytes=buffer_bytes
        )
        for batch in batches:
            streams = lens.forward(
                batch.ids.to(lens.device),
                sites=sites,
                rows=batch.keep.to(lens.device),
                logits="none",
            ).streams
            start = 0
            for row in batch.rows:
                positions = _positions(corpus, row, whole)
                stop = start + len(positions)
                writer.append(
                    f"{row}",
                    {site: streams[site][start:stop].reshape(stop - start, -1) for site in sites},
                    {"row": np.full(len(positions), row), "position": np.array(positions)},
                )
                start = stop
            done += start
            progress("capture", done, total)
    return open_store(folder, key=key)


@dataclass(frozen=True)
class TextBatch:
    """Texts of about equal length, padded at the right.

    Attributes:
        rows: of the corpus.
        ids: token ids; pads are never attended to by what comes before them.
        keep: positions whose activations are kept.
    """

    rows: list[int]
    ids: Int[Tensor, "text pos"]
    keep: Bool[Tensor, "text pos"]


def text_batches(
    lens: Lens,
    corpus: pd.DataFrame,
    sites: Sequence[str],
    *,
    rows: list[int] | None = None,
    whole: bool = False,
    buffer_bytes: int = 256 * 2**20,
) -> Iterator[TextBatch]:
    """The batches in which `capture` reads a corpus (all of it, or some rows)."""
    row_bytes = 4 * sum(lens.site_width(site) for site in sites)
    wanted = list(range(len(corpus))) if rows is None else rows
    for batch in _batches(corpus, wanted, max(1, buffer_bytes // row_bytes), whole):
        texts = [_ids(corpus, row) for row in batch]
        longest = max(map(len, texts))
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        keep = torch.zeros((len(batch), longest), dtype=torch.bool)
        for i, (row, text) in enumerate(zip(batch, texts, strict=True)):
            ids[i, : len(text)] = torch.tensor(text)
            positions = _positions(corpus, row, whole)
            keep[i, positions.start : positions.stop] = True
        yield TextBatch(batch, ids, keep)


def _ids(corpus: pd.DataFrame, row: int) -> list[int]:
    return [*corpus["prompt_ids"].iloc[row], *corpus["completion_ids"].iloc[row]]


def _n_rows(corpus: pd.DataFrame, whole: bool) -> int:
    return sum(len(_positions(corpus, row, whole)) for row in range(len(corpus)))


def _batches(
    corpus: pd.DataFrame, rows: list[int], max_rows: int, whole: bool
) -> Iterator[list[int]]:
    """Rows of about equal length, at most 8,192 tokens and `max_rows` captured ones together."""
    batch: list[int] = []
    captured = 0
    for row in sorted(rows, key=lambda row: len(_ids(corpus, row))):
        new = len(_positions(corpus, row, whole))
        full = (len(batch) + 1) * len(_ids(corpus, row)) > 8192 or captured + new > max_rows
        if batch and full:
            yield batch
            batch, captured = [], 0
        batch.append(row)
        captured += new
    if batch:
        yield batch
