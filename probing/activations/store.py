"""Activations on disk: sharded, keyed by content, resumable after a kill, read memory-mapped.

    manifest.json             the key, the width of each site, the table of shards
    shard-00000.safetensors   one tensor [rows, d] per site
    shard-00000.parquet       the columns of the same rows: block_id, position, label, …
    .lock  .switchsd-part/    the writer's lock, and files that are not finished yet

A **block** is what is appended at once (one corpus row) and never straddles two shards. A shard is
in the store from the moment the manifest names it: both its files are on disk by then, so a kill
loses at most the blocks still in the buffer, and the next start appends those again.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import SwitchSDError
from ...runs import read_parquet
from .disk import exclusive, require_space
from .manifest import (
    Shard,
    StoreContents,
    StoreKey,
    commit,
    load,
    planned_bytes,
    refuse_damage,
    without_damage,
)
from .writer import StoreWriter

_PIECE = 16384  # rows gathered at once, so that no second copy of a shard is made


def ids_digest(sequences: Iterable[Sequence[int] | np.ndarray]) -> str:
    """SHA-256 of integer sequences (token ids, selected positions) and of where each one ends."""
    digest = hashlib.sha256()
    for sequence in sequences:
        block = np.asarray(sequence, dtype="<i8")
        digest.update(len(block).to_bytes(8, "little") + block.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class ActivationStore(StoreContents):
    """A store open for reading, as its manifest described it then; row order is shard order."""

    def columns(self, names: list[str] | None = None) -> pd.DataFrame:
        """The columns (`block_id` and what was appended with it), one line a row of the store."""
        paths = [self.path / f"{shard.name}.parquet" for shard in self.shards]
        if not paths:
            return pd.DataFrame({"block_id": pd.Series([], dtype="str")})
        return pd.concat([read_parquet(path, names) for path in paths], ignore_index=True)

    def read(
        self,
        site: str,
        index: np.ndarray | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "n d"]:
        """Rows of one site in the order of `index` (row numbers or a mask; all rows by default).

        Shards are memory-mapped: other sites and other rows are not read.

        Raises:
            SwitchSDError: unknown site, damaged shard, row numbers outside the store.
        """
        return self._gather(site, self._row_numbers(index), out_dtype, {})

    def batches(
        self,
        site: str,
        batch_size: int,
        *,
        seed: int,
        index: np.ndarray | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> Iterator[tuple[np.ndarray, Float[Tensor, "batch d"]]]:
        """One shuffled pass over `index`: (row numbers, their activations), last batch shorter.

        Only the row numbers are shuffled; memory is one batch and the mapped pages. For another
        order in each epoch pass another seed.
        """
        order = np.random.default_rng(seed).permutation(self._row_numbers(index))
        mapped: dict[str, Tensor] = {}
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            yield rows, self._gather(site, rows, out_dtype, mapped)

    def _row_numbers(self, index: np.ndarray | None) -> np.ndarray:
        if index is None:
            return np.arange(self.n_rows)
        index = np.asarray(index)
        if index.dtype == bool and index.shape == (self.n_rows,):
            return np.flatnonzero(index)
        if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
            raise SwitchSDError(
                f"an index of {self.path} is a list of row numbers or a mask of its {self.n_rows} "
                f"rows; got {index.dtype} of shape {index.shape}"
            )
        if index.size and not 0 <= index.min() <= index.max() < self.n_rows:
            raise SwitchSDError(
                f"{self.path} has rows 0 to {self.n_rows - 1}; "
                f"asked for {index.min()} to {index.max()}"
            )
        return index.astype(np.int64)

    def _gather(
        self, site: str, index: np.ndarray, out_dtype: torch.dtype, mapped: dict[str, Tensor]
    ) -> Tensor:
        if site not in self.d:
            near = difflib.get_close_matches(site, self.d, n=3, cutoff=0) or list(self.d)[:3]
            raise SwitchSDError(f"{self.path} has no site {site!r}; near it: {', '.join(near)}")
        out = torch.empty(len(index), self.d[site], dtype=out_dtype)
        starts = np.cumsum([0, *(shard.rows for shard in self.shards)])
        # each shard is read once, in file order; `order` leads back to the order asked for
        order = np.argsort(index, kind="stable")
        cuts = np.searchsorted(index[order], starts)
        for number, shard in enumerate(self.shards):
            there = order[cuts[number] : cuts[number + 1]]
            if not len(there):
                continue
            if shard.name not in mapped:
                mapped[shard.name] = self._map(shard, site)
            for first in range(0, len(there), _PIECE):
                here = there[first : first + _PIECE]
                rows = torch.from_numpy(index[here] - starts[number])
                out[torch.from_numpy(here)] = mapped[shard.name][rows].to(out_dtype)
        return out

    def _map(self, shard: Shard, site: str) -> Tensor:
        path = self.path / f"{shard.name}.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(site)
        except (OSError, SafetensorError) as error:
            raise SwitchSDError(f"{path} is damaged ({error}); run the capture again") from error


def open_store(
    folder: Path, *, key: StoreKey | None = None, check: bool = False, partial: bool = False
) -> ActivationStore:
    """Open a store for reading; file sizes are always compared, checksums when `check`.

    Args:
        folder: the store's folder.
        key: the key it must have, if one is expected.
        check: read every file and compare checksums.
        partial: accept a store whose capture has not ended.

    Raises:
        SwitchSDError: no store there, another key, unfinished, damaged (every file is named).
    """
    store = load(folder, key)
    if store is None:
        raise SwitchSDError(f"{folder} is not an activation store (it has no manifest.json)")
    if not (store.complete or partial):
        raise SwitchSDError(f"{folder} is unfinished; run the same capture again to complete it")
    refuse_damage(store, check=check)
    return ActivationStore(**vars(store))


@contextmanager
def create_or_resume(
    folder: Path,
    key: StoreKey,
    *,
    d: Mapping[str, int],
    expected_rows: int | None = None,
    buffer_bytes: int = 256 * 2**20,
) -> Iterator[StoreWriter]:
    """Open `folder` for writing, alone: `with create_or_resume(…) as writer`.

    Every checksum is compared first; damaged shards are renamed, with a warning, and their blocks
    are no longer done (appended again, they become the store's last rows). Leaving the `with`
    block writes what is buffered, after an error or an interrupt too; only without one is the
    store marked complete.

    Args:
        folder: a new or empty folder, or a store with the same key.
        key: what the store holds.
        d: width of each site in `key.sites`.
        expected_rows: rows of the finished store, to refuse at once if the disk is too small.
        buffer_bytes: bound on the activations held in memory, and so on a shard's size; it may
            differ from one start to the next.

    Raises:
        SwitchSDError: foreign folder, another key, another writer, too little disk space.
    """
    if set(d) != set(key.sites):
        raise SwitchSDError("the widths d and the sites of the key name different sites")
    new = StoreContents(folder, key, {site: d[site] for site in key.sites})
    here = load(folder, key) or new  # before the lock file: a foreign folder stays as it was
    if expected_rows is not None:
        require_space(folder, planned_bytes(expected_rows - here.n_rows, d, key.dtype))
    with exclusive(folder):
        store = load(folder, key)  # again: another writer may have ended just before the lock
        if store is None:
            store = new
            commit(store)
        writer = StoreWriter(without_damage(store), buffer_bytes)
        try:
            yield writer
            writer.finish()
        except BaseException as error:
            try:
                writer.flush()
            except SwitchSDError as lost:
                error.add_note(f"blocks still in memory were not written: {lost}")
            raise
        finally:
            writer.close()
