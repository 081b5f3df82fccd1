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
import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import SwitchSDError
from ..runs import read_json, read_parquet

_KIND = "switchsd activation store"
_SCHEMA = 1
_PIECE = 16384  # rows gathered at once, so that no second copy of a shard is made
_UNFINISHED = ".switchsd-part"
_OWN_BEFORE_MANIFEST = {".lock", _UNFINISHED}
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}


def planned_bytes(n_rows: int, d: Mapping[str, int], dtype: str) -> int:
    """Bytes that `n_rows` rows of all sites take (the columns add a few bytes a row)."""
    return n_rows * sum(d.values()) * _torch_dtype(dtype).itemsize


def ids_digest(sequences: Iterable[Sequence[int] | np.ndarray]) -> str:
    """SHA-256 of integer sequences (token ids, selected positions) and of where each one ends."""
    digest = hashlib.sha256()
    for sequence in sequences:
        block = np.asarray(sequence, dtype="<i8")
        digest.update(len(block).to_bytes(8, "little") + block.tobytes())
    return digest.hexdigest()


def _torch_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise SwitchSDError(f"store dtype {name!r} is unknown; use {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass(frozen=True)
class StoreKey:
    """Everything that decides what a store holds; two equal keys mean the same activations.

    `model` is the fingerprint of the weights, `corpus` and `rows` are digests (`ids_digest`) of
    the token ids and of the selected positions with their labels.
    """

    model: str
    sites: tuple[str, ...]
    dtype: str
    attention: str
    corpus: str
    rows: str
    versions: Mapping[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        _torch_dtype(self.dtype)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise SwitchSDError(f"a store needs at least one site, each once; got {self.sites}")

    def digest(self) -> str:
        """SHA-256 of the key, the same on every machine; the order of the sites is no part of it.

        Its first characters make a good folder name.
        """
        return hashlib.sha256(json.dumps(_plain(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Shard:
    """One line of the manifest: a shard's rows, its blocks, and bytes and CRC-32 of its files."""

    name: str
    rows: int
    blocks: tuple[str, ...]
    files: Mapping[str, tuple[int, int]]

    @property
    def number(self) -> int:
        """The number in the name."""
        return int(self.name.removeprefix("shard-"))

    def damage(self, folder: Path, *, check: bool) -> list[str]:
        """What is wrong with the files, one phrase each; `check` reads them for the checksum."""
        found = []
        for name, (size, crc) in self.files.items():
            path = folder / name
            if not path.is_file():
                found.append(f"{name} is missing")
            elif path.stat().st_size != size:
                found.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
            elif check and _crc32(path) != crc:
                found.append(f"{name} has another checksum")
        return found


@dataclass(frozen=True)
class ActivationStore:
    """A store as its manifest described it when it was opened; row order is shard order.

    `kinds` maps each column to "str" or a numpy dtype name. `complete` says that the last writer
    ended without an error.
    """

    path: Path
    key: StoreKey
    d: Mapping[str, int]
    shards: tuple[Shard, ...] = ()
    kinds: Mapping[str, str] | None = None
    complete: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows (token positions)."""
        return sum(shard.rows for shard in self.shards)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the stored sites."""
        return self.key.sites

    def blocks(self) -> set[str]:
        """Ids of the blocks that are on disk."""
        return {block for shard in self.shards for block in shard.blocks}

    def verify(self) -> None:
        """Read every file; raise `SwitchSDError` naming all that are damaged."""
        _refuse_damage(self, check=True)

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
    store = _load(folder, key)
    if store is None:
        raise SwitchSDError(f"{folder} is not an activation store (it has no manifest.json)")
    if not (store.complete or partial):
        raise SwitchSDError(f"{folder} is unfinished; run the same capture again to complete it")
    _refuse_damage(store, check=check)
    return store


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
    new = ActivationStore(folder, key, {site: d[site] for site in key.sites})
    here = _load(folder, key) or new  # before the lock file: a foreign folder stays as it was
    if expected_rows is not None:
        _require_space(folder, planned_bytes(expected_rows - here.n_rows, d, key.dtype))
    with _exclusive(folder):
        store = _load(folder, key)  # again: another writer may have ended just before the lock
        if store is None:
            store = new
            _commit(store)
        writer = StoreWriter(_without_damage(store), buffer_bytes)
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


class StoreWriter:
    """Appends blocks to a store that this process has locked (`create_or_resume` makes it)."""

    def __init__(self, store: ActivationStore, buffer_bytes: int) -> None:
        row_bytes = planned_bytes(1, store.d, store.key.dtype)
        self.max_rows = buffer_bytes // row_bytes
        """Most rows that one block may have."""
        if self.max_rows < 1:
            raise SwitchSDError(f"buffer_bytes={buffer_bytes} is less than one row: {row_bytes}")
        dtype = _torch_dtype(store.key.dtype)
        self._store = store
        self._done = store.blocks()
        self._kinds = store.kinds
        self._buffer = {
            site: torch.empty(self.max_rows, width, dtype=dtype) for site, width in store.d.items()
        }
        self._pending: dict[str, _Pending] = {}

    def done_blocks(self) -> set[str]:
        """Ids of the blocks that are safely on disk (not those still in the buffer)."""
        return set(self._done)

    def append(
        self,
        block_id: str,
        rows: Mapping[str, Float[Tensor, "n d"]],
        columns: Mapping[str, np.ndarray],
    ) -> None:
        """Copy one block into the buffer, which is written first when the block does not fit.

        A block without rows is allowed: it counts as done.

        Args:
            block_id: names the block; each may be appended once.
            rows: one tensor [n, d] per site, on any device, in any float type.
            columns: arrays [n] of numbers, booleans or strings; the same names and types in every
                block. `block_id` is added.

        Raises:
            SwitchSDError: NaN or infinite values, values too large for float16, wrong sites,
                shapes or columns, a block larger than the buffer, a disk that is full.
        """
        count = self._checked_rows(block_id, rows)
        arrays = {name: np.array(values) for name, values in columns.items()}
        kinds = {name: _kind(block_id, name, values, count) for name, values in arrays.items()}
        if self._kinds is not None and self._kinds != kinds:
            raise SwitchSDError(f"block {block_id!r} has columns {kinds}, the store {self._kinds}")
        if self._filled + count > self.max_rows:
            self.flush()
        start, stop = self._filled, self._filled + count
        for site, buffer in self._buffer.items():
            part = buffer[start:stop]
            part.copy_(rows[site])
            # the extremes carry NaN along and need no second tensor
            if count and not all(math.isfinite(x) for x in torch.aminmax(part)):
                raise SwitchSDError(_not_finite(block_id, site, rows[site], self._store.key.dtype))
        self._kinds = kinds
        # one step, last: an interrupt before it leaves the buffer as if nothing was appended
        self._pending[block_id] = _Pending(start, stop, arrays)

    def flush(self) -> None:
        """Write the buffer as one shard; on failure what was flushed before stays valid."""
        if not self._pending:
            return
        folder, shards, count = self._store.path, self._store.shards, self._filled
        _require_space(folder, planned_bytes(count, self._store.d, self._store.key.dtype))
        name = f"shard-{max((shard.number for shard in shards), default=-1) + 1:05d}"
        with _writing(folder) as unfinished:
            tensors, table = unfinished / f"{name}.safetensors", unfinished / f"{name}.parquet"
            save_file({site: buffer[:count] for site, buffer in self._buffer.items()}, tensors)
            self._columns().to_parquet(table, index=False)
            tensors.chmod(table.stat().st_mode)  # safetensors lets the owner alone read
            files = {path.name: (path.stat().st_size, _crc32(path)) for path in (tensors, table)}
            _publish(folder, tensors, table)
        shard = Shard(name, count, tuple(self._pending), files)
        store = replace(self._store, shards=(*shards, shard), kinds=self._kinds, complete=False)
        _commit(store)
        # together: an interrupt between the two would write the blocks twice
        self._store, self._pending = store, {}
        self._done.update(shard.blocks)

    def finish(self) -> None:
        """Write what is buffered and mark the store complete (leaving the `with` block does it)."""
        self.flush()
        if not self._store.complete:
            self._store = replace(self._store, complete=True)
            _commit(self._store)

    def close(self) -> None:
        """Free the buffer; nothing can be appended any more (leaving the `with` block does it)."""
        self._buffer, self._pending = {}, {}

    @property
    def _filled(self) -> int:
        return next(reversed(self._pending.values())).stop if self._pending else 0

    def _columns(self) -> pd.DataFrame:
        pending, kinds = self._pending, self._kinds or {}
        ids = [block_id for block_id, part in pending.items() for _ in range(part.start, part.stop)]
        columns = {"block_id": pd.Series(ids, dtype="str")}
        for name, kind in kinds.items():
            values = np.concatenate([part.columns[name] for part in pending.values()])
            columns[name] = pd.Series(values, dtype=kind)
        return pd.DataFrame(columns)

    def _checked_rows(self, block_id: str, rows: Mapping[str, Tensor]) -> int:
        store = self._store
        if not self._buffer:
            raise SwitchSDError(f"the writer of {store.path} is closed; open the store again")
        if block_id in self._done or block_id in self._pending:
            raise SwitchSDError(f"block {block_id!r} is in {store.path} already; skip done_blocks")
        if set(rows) != set(store.d):
            wrong = sorted(set(rows) ^ set(store.d))
            raise SwitchSDError(f"block {block_id!r}: sites missing or unknown: {', '.join(wrong)}")
        count = len(next(iter(rows.values())))
        for site, tensor in rows.items():
            if tensor.shape != (count, store.d[site]) or not tensor.is_floating_point():
                raise SwitchSDError(
                    f"block {block_id!r}, site {site}: expected floats of shape "
                    f"{(count, store.d[site])}, got {tensor.dtype} {tuple(tensor.shape)}"
                )
        if count > self.max_rows:
            needed = planned_bytes(count, store.d, store.key.dtype)
            raise SwitchSDError(
                f"block {block_id!r} has {count} rows, the buffer room for {self.max_rows}; "
                f"set buffer_bytes to {needed} or more, or store fewer sites"
            )
        return count


@dataclass(frozen=True)
class _Pending:
    """A block in the buffer: its rows there and its columns."""

    start: int
    stop: int
    columns: dict[str, np.ndarray]


def _kind(block_id: str, name: str, values: np.ndarray, count: int) -> str:
    kind = values.dtype.kind
    text = kind == "U" or (kind == "O" and all(isinstance(value, str) for value in values.flat))
    if name == "block_id" or values.shape != (count,) or not (text or kind in "biuf"):
        raise SwitchSDError(
            f"block {block_id!r}, column {name!r}: expected {count} numbers or strings, got "
            f"{values.dtype} of shape {values.shape} (the store itself adds block_id)"
        )
    return "str" if text else values.dtype.name


def _not_finite(block_id: str, site: str, source: Tensor, dtype: str) -> str:
    where = f"block {block_id!r}, site {site}"
    if torch.isfinite(source).all():
        high = source.abs().max().item()
        return f"{where}: {high:.3g} is too large for {dtype}; store float32 or bfloat16 instead"
    return f"{where}: NaN or infinite activations; check the model's weights and dtype"


def _load(folder: Path, key: StoreKey | None) -> ActivationStore | None:
    """The store in `folder`; None where one can be made; foreign contents or key are refused."""
    path = folder / "manifest.json"
    if not path.is_file():
        if not folder.exists():
            return None
        if folder.is_dir() and {child.name for child in folder.iterdir()} <= _OWN_BEFORE_MANIFEST:
            return None
        raise SwitchSDError(f"{folder} holds something other than a store; choose another folder")
    value = read_json(path)
    if not isinstance(value, dict) or value.get("kind") != _KIND:
        raise SwitchSDError(f"{folder} belongs to something else; choose another folder")
    if value.get("schema", 0) > _SCHEMA:
        raise SwitchSDError(f"{path} was written by a newer switchsd; upgrade to read it")
    try:
        found = StoreKey(**{**value["key"], "sites": tuple(value["key"]["sites"])})
        shards = tuple(
            Shard(
                name=shard["name"],
                rows=shard["rows"],
                blocks=tuple(shard["blocks"]),
                files={name: (size, crc) for name, (size, crc) in shard["files"].items()},
            )
            for shard in value["shards"]
        )
        d, kinds, complete = value["d"], value["kinds"], value["complete"]
    except (KeyError, TypeError, ValueError) as error:
        raise SwitchSDError(f"{path} is damaged ({error!r}); choose another folder") from error
    if key is not None and key.digest() != found.digest():
        mine, theirs = _plain(key), _plain(found)
        differ = [name for name in mine if mine[name] != theirs[name]]
        raise SwitchSDError(
            f"{folder} holds other activations (it differs in {', '.join(differ)}); "
            f"choose another folder"
        )
    return ActivationStore(folder, found, d, shards, kinds, complete)


def _plain(key: StoreKey) -> dict[str, Any]:
    return {**vars(key), "sites": sorted(key.sites), "versions": dict(key.versions)}


def _commit(store: ActivationStore) -> None:
    """Write the manifest: from here on the store is what `store` says."""
    value = {
        "kind": _KIND,
        "schema": _SCHEMA,
        "digest": store.key.digest(),
        "complete": store.complete,
        "key": {**_plain(store.key), "sites": store.key.sites},
        "d": dict(store.d),
        "kinds": store.kinds,
        "shards": [vars(shard) for shard in store.shards],
    }
    with _writing(store.path) as unfinished:
        path = unfinished / "manifest.json"
        path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _publish(store.path, path)


def _refuse_damage(store: ActivationStore, *, check: bool) -> None:
    found = [text for shard in store.shards for text in shard.damage(store.path, check=check)]
    if found:
        raise SwitchSDError(
            f"{store.path} is damaged: {'; '.join(found)}; run the capture again to redo these"
        )


def _without_damage(store: ActivationStore) -> ActivationStore:
    """Drop damaged shards from the manifest and rename every shard file that it does not name."""
    found = {shard.name: shard.damage(store.path, check=True) for shard in store.shards}
    if any(found.values()):
        shards = tuple(shard for shard in store.shards if not found[shard.name])
        store = replace(store, shards=shards, complete=False)
        _commit(store)
        why = "; ".join(text for texts in found.values() for text in texts)
        warnings.warn(f"{store.path}: {why}; the blocks there are to be redone", stacklevel=4)
    shutil.rmtree(store.path / _UNFINISHED, ignore_errors=True)  # left by a kill
    listed = {name for shard in store.shards for name in shard.files}
    for path in sorted(store.path.glob("shard-*")):
        if path.suffix in (".safetensors", ".parquet") and path.name not in listed:
            number = 0
            while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
                number += 1
            path.rename(aside)
    return store


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel drops it with the process, so none is ever stale."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SwitchSDError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        pid = os.pread(lock, 32, 0).decode().strip()
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise SwitchSDError(f"cannot lock {folder}: {error.strerror}") from error
        raise SwitchSDError(
            f"process {pid} is writing {folder}; wait for it to end, or end it"
        ) from error
    return lock


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """A place for unfinished files, empty before and gone after; failures become our error."""
    unfinished = folder / _UNFINISHED
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        yield unfinished
    except (OSError, SafetensorError) as error:
        raise SwitchSDError(
            f"cannot write in {folder}: {error}; what was flushed is safe: free some space and "
            f"run the same capture again"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _publish(folder: Path, *paths: Path) -> None:
    """Move finished files into `folder`, each on disk in full before its name is there."""
    for path in paths:
        _sync(path)
    for path in paths:
        os.replace(path, folder / path.name)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc32(path: Path) -> int:
    """CRC-32: finds accidents, and is cheap beside the capture."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(2**20):
            crc = zlib.crc32(piece, crc)
    return crc


def _require_space(folder: Path, needed: int) -> None:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise SwitchSDError(
            f"{folder} needs {_size(needed)}, {_size(free)} are free: "
            f"free some space, or store fewer sites or rows"
        )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.3f} MB"
