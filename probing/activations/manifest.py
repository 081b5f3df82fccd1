"""The manifest of an activation store: its key, its shards, and what is wrong with their files."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ...errors import SwitchSDError
from ...runs import read_as, read_json
from .disk import LOCK, UNFINISHED, crc32, publish, writing

_KIND = "switchsd activation store"
_SCHEMA = 1
_OWN_BEFORE_MANIFEST = {LOCK, UNFINISHED}
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "bfloat16": torch.bfloat16}


def planned_bytes(n_rows: int, d: Mapping[str, int], dtype: str) -> int:
    """Bytes that `n_rows` rows of all sites take (the columns add a few bytes a row)."""
    return n_rows * sum(d.values()) * torch_dtype(dtype).itemsize


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of this name; `SwitchSDError` for one that a store cannot have."""
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
        torch_dtype(self.dtype)
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
            elif check and crc32(path) != crc:
                found.append(f"{name} has another checksum")
        return found


@dataclass(frozen=True)
class StoreContents:
    """What a store's manifest says; row order is shard order.

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
        refuse_damage(self, check=True)


def load(folder: Path, key: StoreKey | None) -> StoreContents | None:
    """What the store in `folder` holds; None where one can be made; foreign folders are refused."""
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
        parts = {name: value.get(name) for name in ("key", "d", "shards", "kinds", "complete")}
        found: StoreContents = read_as(StoreContents, {**parts, "path": folder})
    except SwitchSDError as error:
        raise SwitchSDError(f"{path} is damaged ({error}); choose another folder") from error
    if key is not None and key.digest() != found.key.digest():
        mine, theirs = _plain(key), _plain(found.key)
        differ = [name for name in mine if mine[name] != theirs[name]]
        raise SwitchSDError(
            f"{folder} holds other activations (it differs in {', '.join(differ)}); "
            f"choose another folder"
        )
    return found


def commit(store: StoreContents) -> None:
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
    with writing(store.path) as unfinished:
        path = unfinished / "manifest.json"
        path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        publish(store.path, path)


def refuse_damage(store: StoreContents, *, check: bool) -> None:
    """Raise `SwitchSDError` naming all damaged files; `check` reads them for the checksum."""
    found = [text for shard in store.shards for text in shard.damage(store.path, check=check)]
    if found:
        raise SwitchSDError(
            f"{store.path} is damaged: {'; '.join(found)}; run the capture again to redo these"
        )


def without_damage(store: StoreContents) -> StoreContents:
    """Drop damaged shards from the manifest and rename every shard file that it does not name."""
    found = {shard.name: shard.damage(store.path, check=True) for shard in store.shards}
    if any(found.values()):
        shards = tuple(shard for shard in store.shards if not found[shard.name])
        store = replace(store, shards=shards, complete=False)
        commit(store)
        why = "; ".join(text for texts in found.values() for text in texts)
        warnings.warn(f"{store.path}: {why}; the blocks there are to be redone", stacklevel=4)
    shutil.rmtree(store.path / UNFINISHED, ignore_errors=True)  # left by a kill
    listed = {name for shard in store.shards for name in shard.files}
    for path in sorted(store.path.glob("shard-*")):
        if path.suffix in (".safetensors", ".parquet") and path.name not in listed:
            number = 0
            while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
                number += 1
            path.rename(aside)
    return store


def _plain(key: StoreKey) -> dict[str, Any]:
    return {**vars(key), "sites": sorted(key.sites), "versions": dict(key.versions)}
