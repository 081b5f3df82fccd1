"""The writing side of an activation store: blocks in, shards out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from ...errors import SwitchSDError
from .disk import crc32, publish, require_space, writing
from .manifest import Shard, StoreContents, commit, planned_bytes, torch_dtype


class StoreWriter:
    """Appends blocks to a store that this process has locked (`create_or_resume` makes it)."""

    def __init__(self, store: StoreContents, buffer_bytes: int) -> None:
        row_bytes = planned_bytes(1, store.d, store.key.dtype)
        self.max_rows = buffer_bytes // row_bytes
        """Most rows that one block may have."""
        if self.max_rows < 1:
            raise SwitchSDError(f"buffer_bytes={buffer_bytes} is less than one row: {row_bytes}")
        dtype = torch_dtype(store.key.dtype)
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
        require_space(folder, planned_bytes(count, self._store.d, self._store.key.dtype))
        name = f"shard-{max((shard.number for shard in shards), default=-1) + 1:05d}"
        with writing(folder) as unfinished:
            tensors, table = unfinished / f"{name}.safetensors", unfinished / f"{name}.parquet"
            save_file({site: buffer[:count] for site, buffer in self._buffer.items()}, tensors)
            self._columns().to_parquet(table, index=False)
            tensors.chmod(table.stat().st_mode)  # safetensors lets the owner alone read
            files = {path.name: (path.stat().st_size, crc32(path)) for path in (tensors, table)}
            publish(folder, tensors, table)
        shard = Shard(name, count, tuple(self._pending), files)
        store = replace(self._store, shards=(*shards, shard), kinds=self._kinds, complete=False)
        commit(store)
        # together: an interrupt between the two would write the blocks twice
        self._store, self._pending = store, {}
        self._done.update(shard.blocks)

    def finish(self) -> None:
        """Write what is buffered and mark the store complete (leaving the `with` block does it)."""
        self.flush()
        if not self._store.complete:
            self._store = replace(self._store, complete=True)
            commit(self._store)

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
