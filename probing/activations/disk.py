"""The disk under an activation store: lock, unfinished files, atomic publish, checksum, space."""

from __future__ import annotations

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
    """Hold the folder's lock. The system drops it with the process, so none is ever stale."""
    from filelock import FileLock, Timeout

    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, blocking=False, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise SwitchSDError(
            f"process {path.read_text().strip()} is writing {folder}; wait for it to end, or end it"
        ) from error
    except OSError as error:
        raise SwitchSDError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


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
