"""The disk under an activation store: lock, unfinished files, atomic publish, checksum, space."""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ...errors import SwitchSDError

LOCK = ".lock"
UNFINISHED = ".switchsd-part"
"""Folder, in the store's, of files that are not finished yet."""


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel drops it with the process, so none is ever stale."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
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
def writing(folder: Path) -> Iterator[Path]:
    """A place for unfinished files, empty before and gone after; failures become our error."""
    unfinished = folder / UNFINISHED
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


def publish(folder: Path, *paths: Path) -> None:
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


def crc32(path: Path) -> int:
    """CRC-32: finds accidents, and is cheap beside the capture."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(2**20):
            crc = zlib.crc32(piece, crc)
    return crc


def require_space(folder: Path, needed: int) -> None:
    """Raise `SwitchSDError` if `needed` bytes do not fit on the disk that holds `folder`."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise SwitchSDError(
            f"{folder} needs {_size(needed)}, {_size(free)} are free: "
            f"free some space, or store fewer sites or rows"
        )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.3f} MB"
