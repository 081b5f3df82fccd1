"""The activation store: kills, two writers, damage, a full disk, memory bounds, order of rows."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal  # noqa: F401 - the scripts below use this module's names
import subprocess
import sys
import time  # noqa: F401 - the same
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd.errors import SwitchSDError
from switchsd.probing.activations.store import (
    StoreKey,
    create_or_resume,
    ids_digest,
    open_store,
    planned_bytes,
)

SITES = ("blocks.0.hook_resid_post", "blocks.1.attn.hook_z")
WIDTH = {SITES[0]: 8, SITES[1]: 5}
ROW_BYTES = 2 * (8 + 5)
KEY = StoreKey(
    model="weights-1",
    sites=SITES,
    dtype="float16",
    attention="sdpa",
    corpus=ids_digest([[1, 2], [3]]),
    rows=ids_digest([[0], [0]]),
    versions={"torch": "2.13.0", "transformers": "5.23.0"},
)


def block(number: int) -> tuple[str, dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Block `number`: 3 to 6 rows whose values no other row has."""
    count = 3 + number % 4
    generator = torch.Generator().manual_seed(number)
    rows = {site: torch.randn(count, d, generator=generator) for site, d in WIDTH.items()}
    columns = {
        "position": np.arange(count) + 100 * number,
        "label": np.arange(count) % 2 == 0,
        "family": np.array([f"family-{'x' * (number % 3)}"] * count),
    }
    return f"block-{number}", rows, columns


def capture(
    folder: Path,
    blocks: int = 12,
    after: Callable[[int], None] = lambda number: None,
    **options: Any,
) -> None:
    """What a capture does: append every block that is not done yet."""
    options.setdefault("buffer_bytes", 12 * ROW_BYTES)
    with create_or_resume(folder, options.pop("key", KEY), d=WIDTH, **options) as writer:
        done = writer.done_blocks()
        for number in range(blocks):
            block_id, rows, columns = block(number)
            if block_id not in done:
                writer.append(block_id, rows, columns)
                after(number)


def contents(folder: Path) -> dict[str, bytes]:
    """The store's files by name, without the lock."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}


def expected(site: str, blocks: int = 12, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.cat([block(number)[1][site] for number in range(blocks)]).to(dtype)


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process that knows this module's names."""
    return subprocess.run(command(code, *arguments), capture_output=True, text=True, timeout=120)


def command(code: str, *arguments: object) -> list[str]:
    here = str(Path(__file__).parent)
    start = f"import sys; sys.path.insert(0, {here!r}); from test_store import *\n"
    return [sys.executable, "-c", start + code, *map(str, arguments)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def captured_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured") / "store"
    capture(folder)
    return folder


@pytest.fixture
def captured(captured_once: Path, folder: Path) -> Path:
    """A finished store of 12 blocks, free to be spoiled."""
    shutil.copytree(captured_once, folder)
    return folder


# --- what goes in comes out ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_and_columns_come_back_in_the_order_they_went_in(folder: Path, dtype: str) -> None:
    capture(folder, key=replace(KEY, dtype=dtype), buffer_bytes=600)
    store = open_store(folder, check=True)
    assert len(store.shards) > 1
    for site in SITES:
        got = store.read(site)
        assert got.dtype == torch.float32
        assert torch.equal(got, expected(site, dtype=getattr(torch, dtype)).float())
    frames = [pd.DataFrame({"block_id": i, **columns}) for i, _, columns in map(block, range(12))]
    pd.testing.assert_frame_equal(store.columns(), pd.concat(frames, ignore_index=True))
    assert store.n_rows == len(store.columns())
    assert store.sites == SITES
    assert list(store.columns(["label"])) == ["label"]


def test_fancy_index_keeps_the_order_asked_for(captured: Path) -> None:
    store = open_store(captured)
    everything = store.read(SITES[1])
    rng = np.random.default_rng(0)
    index = rng.integers(0, store.n_rows, 200)  # repeated, unsorted, over all shards
    assert torch.equal(store.read(SITES[1], index), everything[index])
    mask = rng.random(store.n_rows) < 0.5  # a mask cast to int would read rows 0 and 1
    assert torch.equal(store.read(SITES[1], mask), everything[mask])
    assert store.read(SITES[1], np.array([3, 0]), torch.float16).dtype == torch.float16
    assert store.read(SITES[1], np.array([], dtype=int)).shape == (0, 5)


@pytest.mark.parametrize("index", [[-1], [0, 10**6], [[0]], [0.5], [True, False]])
def test_wrong_row_numbers_are_refused(captured: Path, index: list[Any]) -> None:
    with pytest.raises(SwitchSDError, match="rows"):
        open_store(captured).read(SITES[0], np.array(index))


def test_unknown_site_names_near_ones(captured: Path) -> None:
    with pytest.raises(SwitchSDError, match=r"no site 'blocks\.0\.hook_resid_pre'.*resid_post"):
        open_store(captured).read("blocks.0.hook_resid_pre")


def test_batches_cover_each_row_once_with_its_own_activations(captured: Path) -> None:
    store = open_store(captured)
    everything = store.read(SITES[0])
    index = np.arange(0, store.n_rows, 2)

    def rows(seed: int) -> np.ndarray:
        found = []
        for numbers, x in store.batches(SITES[0], 7, seed=seed, index=index):
            assert len(numbers) <= 7
            assert torch.equal(x, everything[numbers])
            found.append(numbers)
        return np.concatenate(found)

    assert sorted(rows(0)) == list(index)
    assert list(rows(0)) == list(rows(0))
    assert list(rows(0)) != list(rows(1))
    assert list(rows(0)) != list(index)


def test_what_the_caller_does_to_its_arrays_later_changes_nothing(folder: Path) -> None:
    block_id, rows, columns = block(1)
    with create_or_resume(folder, KEY, d=WIDTH) as writer:
        writer.append(block_id, rows, columns)
        rows[SITES[0]].zero_()
        columns["position"][:] = 0
    store = open_store(folder)
    assert store.read(SITES[0]).abs().min() > 0
    assert store.columns()["position"].min() == 100


def test_blocks_without_rows_count_as_done(folder: Path) -> None:
    _, rows, columns = block(0)
    empty = {site: x[:0] for site, x in rows.items()}, {k: v[:0] for k, v in columns.items()}
    with create_or_resume(folder, KEY, d=WIDTH) as writer:
        writer.append("nothing", *empty)
    with create_or_resume(folder, KEY, d=WIDTH) as writer:
        assert writer.done_blocks() == {"nothing"}
        writer.append("nothing more", *empty)
        writer.append("something", rows, columns)
    store = open_store(folder, check=True)
    assert store.blocks() == {"nothing", "nothing more", "something"}
    assert torch.equal(store.read(SITES[0]), rows[SITES[0]].half().float())
    assert store.columns().dtypes["label"].name == "bool"


# --- the key ------------------------------------------------------------------------------------


def test_digest_is_stable_and_every_field_counts() -> None:
    assert KEY.digest() == "5cd59bdb19895632fc432b10592bc7d8d75d55d9adf9fc16ca0753fe2643048d"
    assert replace(KEY, sites=SITES[::-1]).digest() == KEY.digest()
    others = [
        replace(KEY, model="weights-2"),
        replace(KEY, sites=SITES[:1]),
        replace(KEY, dtype="bfloat16"),
        replace(KEY, attention="eager"),
        replace(KEY, corpus=ids_digest([[1], [2, 3]])),  # the same ids, cut elsewhere
        replace(KEY, rows=ids_digest([[0], [1]])),
        replace(KEY, versions={"torch": "2.13.1", "transformers": "5.23.0"}),
    ]
    assert len({KEY.digest(), *(key.digest() for key in others)}) == 8


def test_another_key_is_refused_by_the_field_and_the_store_stays(captured: Path) -> None:
    before = contents(captured)
    for key, name in [(replace(KEY, model="other"), "model"), (replace(KEY, rows="x"), "rows")]:
        with pytest.raises(SwitchSDError, match=f"differs in {name}"):
            capture(captured, key=key)
        with pytest.raises(SwitchSDError, match=f"differs in {name}"):
            open_store(captured, key=key)
    assert contents(captured) == before
    assert open_store(captured, key=replace(KEY, sites=SITES[::-1])).n_rows


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "shard-00000.safetensors"])
def test_foreign_folder_is_kept_intact(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / name).write_text('{"schema": 1, "command": "demo"}')
    with pytest.raises(SwitchSDError, match="choose another folder"):
        capture(folder)
    assert [p.name for p in folder.iterdir()] == [name]
    assert (folder / name).read_text() == '{"schema": 1, "command": "demo"}'


def test_foreign_files_beside_a_store_survive_a_resume(folder: Path) -> None:
    capture(folder, blocks=6)
    (folder / "notes.txt").write_text("mine")
    name = f"shard-{len(open_store(folder).shards):05d}.safetensors"  # the next one's name
    (folder / name).write_text("mine too")
    capture(folder, blocks=12)
    assert (folder / "notes.txt").read_text() == "mine"
    assert b"mine too" in [p.read_bytes() for p in folder.glob(f"{name}*")]
    assert torch.equal(open_store(folder, check=True).read(SITES[0]), expected(SITES[0]).float())


def test_no_store_there(folder: Path) -> None:
    with pytest.raises(SwitchSDError, match="not an activation store"):
        open_store(folder)
    folder.write_text("a file")
    with pytest.raises(SwitchSDError, match="choose another folder"):
        capture(folder)


# --- kills --------------------------------------------------------------------------------------

KILLED_BEFORE_STEPS = """
root = Path(sys.argv[1])
torch.set_num_threads(1)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid

def kill_before(step):
    left = [step]
    def wrap(real):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    for name in ("replace", "fsync"):
        setattr(os, name, wrap(getattr(os, name)))

def killed(folder, step):
    kill_before(step)
    capture(folder, 5)

for step in map(int, sys.argv[2:]):
    folder = root / f"step-{step}"
    status = os.waitpid(child(lambda: killed(folder, step)), 0)[1]
    if status == 0:  # no such step: the capture ended
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    print(step)
"""


# of 22 operations: the first manifest's replace; the second file of the first shard; the manifest
# that names it; the second shard; the manifest that calls the store complete
KILL_POINTS = (1, 6, 9, 14, 20)


@pytest.mark.parametrize(
    "steps", [KILL_POINTS, pytest.param(range(100), marks=pytest.mark.slow)], ids=["some", "every"]
)
def test_killed_before_a_file_operation_a_store_resumes_whole(
    tmp_path: Path, steps: Sequence[int]
) -> None:
    (tmp_path / "killed").mkdir()
    result = run_python(KILLED_BEFORE_STEPS, tmp_path / "killed", *steps)
    assert result.returncode == 0, result.stderr
    killed = [int(line) for line in result.stdout.split()]
    assert set(killed) >= set(KILL_POINTS)
    assert len(killed) < 100  # the capture came to its end: no step was left out
    capture(tmp_path / "whole", 5)
    whole = contents(tmp_path / "whole")
    shards = len(open_store(tmp_path / "whole").shards)
    kept = []
    for step in killed:
        folder = tmp_path / "killed" / f"step-{step}"
        if (folder / "manifest.json").exists():
            kept.append(len(open_store(folder, check=True, partial=True).shards))
            if kept[-1] < shards:
                with pytest.raises(SwitchSDError, match="unfinished"):
                    open_store(folder)
        capture(folder, 5)
        # the same bytes; a shard that no manifest named when the kill came lies aside
        found = {name: data for name, data in contents(folder).items() if ".aside-" not in name}
        assert found == whole, f"killed before step {step}"
    assert sorted(set(kept)) == list(range(shards + 1))  # flushed shards are never lost
    assert kept == sorted(kept)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SwitchSDError, RuntimeError])
def test_an_interrupt_keeps_what_is_buffered(folder: Path, error: type[BaseException]) -> None:
    def stop(number: int) -> None:
        if number == 4:
            raise error

    with pytest.raises(error):
        capture(folder, after=stop, buffer_bytes=10**6)
    assert open_store(folder, partial=True).blocks() == {f"block-{n}" for n in range(5)}
    capture(folder, buffer_bytes=10**6)
    assert torch.equal(open_store(folder).read(SITES[0]), expected(SITES[0]).float())


# --- two writers --------------------------------------------------------------------------------


def test_second_writer_is_refused_by_pid_and_a_killed_one_is_followed(
    folder: Path, tmp_path: Path
) -> None:
    """The kill comes from outside, at an odd moment."""
    pause = "time.sleep(.02 if n < 19 else 60)"  # never ends before the kill
    code = f"capture(Path(sys.argv[1]), 20, after=lambda n: (print(n, flush=True), {pause}))"
    process = subprocess.Popen(command(code, folder), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(10):
        process.stdout.readline()
    with pytest.raises(SwitchSDError, match=f"process {process.pid} is writing"):
        capture(folder, 20)
    process.kill()
    process.wait()
    process.stdout.close()
    assert (folder / ".lock").read_text() == f"{process.pid}\n"
    store = open_store(folder, partial=True)
    assert not store.complete
    assert len(store.shards) > 0
    capture(folder, 20)
    capture(tmp_path / "whole", 20)
    found = {name: data for name, data in contents(folder).items() if ".aside-" not in name}
    assert found == contents(tmp_path / "whole")


def test_a_lock_file_that_names_a_living_process_but_is_not_held(folder: Path) -> None:
    """A process id is used again after a reboot, so the file's text alone must not lock."""
    capture(folder, blocks=3)
    (folder / ".lock").write_text(f"{os.getppid():020d}\n")
    capture(folder)
    assert (folder / ".lock").read_text() == f"{os.getpid()}\n"
    assert open_store(folder).complete


def test_two_writers_in_one_process(folder: Path) -> None:
    with create_or_resume(folder, KEY, d=WIDTH) as writer:
        writer.append(*block(0))
        with pytest.raises(SwitchSDError, match=f"process {os.getpid()} is writing"):
            capture(folder)
        writer.append(*block(1))
    with pytest.raises(SwitchSDError, match="closed"):
        writer.append(*block(2))
    assert open_store(folder).blocks() == {"block-0", "block-1"}


# --- damage -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow), -1])
@pytest.mark.parametrize("suffix", ["safetensors", "parquet"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damage_is_named_set_aside_and_redone(
    captured: Path, number: int, suffix: str, damage: Callable[[Path], None]
) -> None:
    name = f"{open_store(captured).shards[number].name}.{suffix}"
    lost = open_store(captured).shards[number].blocks
    damage(captured / name)
    damaged = (captured / name).read_bytes() if (captured / name).exists() else None
    with pytest.raises(SwitchSDError, match=f"{name} (has|is missing)"):
        open_store(captured, check=True)
    if damage is flip:
        with pytest.raises(SwitchSDError, match=f"{name} has another checksum"):
            open_store(captured).verify()  # opening alone compares sizes only
    else:
        with pytest.raises(SwitchSDError, match=name):
            open_store(captured)
    with (
        pytest.warns(UserWarning, match=name),
        create_or_resume(captured, KEY, d=WIDTH, buffer_bytes=12 * ROW_BYTES) as writer,
    ):
        assert writer.done_blocks() == {f"block-{n}" for n in range(12)} - set(lost)
    capture(captured)
    store = open_store(captured, check=True)
    order = [int(i.split("-")[1]) for i in store.columns()["block_id"].unique()]
    assert sorted(order) == list(range(12))
    assert torch.equal(
        store.read(SITES[0]), torch.cat([block(n)[1][SITES[0]] for n in order]).half().float()
    )
    if damaged is not None:
        assert damaged in [p.read_bytes() for p in captured.glob(f"{name}.aside-*")]


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "switchsd activation store"}'])
def test_damaged_manifest_is_named_and_left(captured: Path, text: str) -> None:
    (captured / "manifest.json").write_text(text)
    before = contents(captured)
    with pytest.raises(SwitchSDError):
        capture(captured)
    with pytest.raises(SwitchSDError):
        open_store(captured)
    assert contents(captured) == before


def test_newer_store_is_refused(captured: Path) -> None:
    value = json.loads((captured / "manifest.json").read_text())
    (captured / "manifest.json").write_text(json.dumps(value | {"schema": 99}))
    with pytest.raises(SwitchSDError, match="newer switchsd"):
        open_store(captured)


# --- bad blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (float("nan"), "float16", "block-0.*resid_post.*NaN"),
        (float("inf"), "float16", "block-0.*resid_post.*NaN or infinite"),
        (-float("inf"), "bfloat16", "block-0.*resid_post.*NaN or infinite"),
        (70000.0, "float16", "block-0.*resid_post.*7e.04.*float16.*float32 or bfloat16"),
        (-70000.0, "float16", "float32 or bfloat16"),
    ],
)
def test_values_that_cannot_be_stored(folder: Path, value: float, dtype: str, message: str) -> None:
    block_id, rows, columns = block(0)
    rows[SITES[0]][1, 2] = value
    with create_or_resume(folder, replace(KEY, dtype=dtype), d=WIDTH) as writer:
        with pytest.raises(SwitchSDError, match=message):
            writer.append(block_id, rows, columns)
        writer.append(*block(1))  # the refused block left nothing behind
    assert open_store(folder).blocks() == {"block-1"}
    assert open_store(folder).n_rows == 4


def test_large_values_fit_in_bfloat16(folder: Path) -> None:
    block_id, rows, columns = block(0)
    rows[SITES[0]][1, 2] = 70000.0
    with create_or_resume(folder, replace(KEY, dtype="bfloat16"), d=WIDTH) as writer:
        writer.append(block_id, rows, columns)
    assert open_store(folder).read(SITES[0])[1, 2] == pytest.approx(70000, rel=0.01)


def spoiled(what: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    block_id, rows, columns = block(1)
    other: dict[str, Any] = dict(columns)
    if what == "site":
        rows["blocks.9.hook_resid_pre"] = rows.pop(SITES[0])
    elif what == "width":
        rows[SITES[0]] = rows[SITES[0]][:, :1]  # copy_ would broadcast it
    elif what == "length":
        rows[SITES[0]] = rows[SITES[0]][:1]
    elif what == "integers":
        rows[SITES[0]] = rows[SITES[0]].long()
    elif what == "column":
        del other["label"]
    elif what == "type":
        other["position"] = other["position"].astype(float)
    elif what == "short":
        other["position"] = other["position"][:-1]
    elif what == "objects":
        other["family"] = np.array([{}] * 4)
    elif what == "reserved":
        other["block_id"] = other["family"]
    return block_id, rows, other


@pytest.mark.parametrize(
    "what",
    ["site", "width", "length", "integers", "column", "type", "short", "objects", "reserved"],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_blocks_of_another_shape_are_refused(folder: Path, what: str, resumed: bool) -> None:
    if resumed:
        capture(folder, blocks=1)
    with create_or_resume(folder, KEY, d=WIDTH) as writer:
        if not resumed:
            writer.append(*block(0))
        with pytest.raises(SwitchSDError, match="block"):
            writer.append(*spoiled(what))
    assert open_store(folder, check=True).blocks() == {"block-0"}


def test_a_block_twice_and_a_block_too_large(folder: Path) -> None:
    capture(folder, blocks=1)
    with create_or_resume(folder, KEY, d=WIDTH, buffer_bytes=5 * ROW_BYTES) as writer:
        assert writer.max_rows == 5
        with pytest.raises(SwitchSDError, match="already"):
            writer.append(*block(0))  # on disk
        writer.append(*block(1))
        with pytest.raises(SwitchSDError, match="already"):
            writer.append(*block(1))  # in the buffer
        with pytest.raises(SwitchSDError, match=f"buffer_bytes to {6 * ROW_BYTES}"):
            writer.append(*block(3))
    assert open_store(folder).n_rows == 3 + 4


@pytest.mark.parametrize(("name", "value"), [("dtype", "int8"), ("sites", ()), ("sites", "aa")])
def test_wrong_key(name: str, value: Any) -> None:
    with pytest.raises(SwitchSDError):
        replace(KEY, **{name: value})
    with pytest.raises(SwitchSDError, match=r"int8.*use float16"):
        planned_bytes(1, WIDTH, "int8")


def test_wrong_widths_and_buffer(folder: Path) -> None:
    with (
        pytest.raises(SwitchSDError, match="different sites"),
        create_or_resume(folder, KEY, d={SITES[0]: 8}),
    ):
        pass
    with pytest.raises(SwitchSDError, match="less than one row"):
        capture(folder, buffer_bytes=ROW_BYTES - 1)


# --- disk and memory ----------------------------------------------------------------------------


def test_planned_bytes_is_what_the_tensors_take(folder: Path) -> None:
    assert planned_bytes(100_000, {str(n): 576 for n in range(120)}, "float16") == 13_824_000_000
    capture(folder, blocks=400, buffer_bytes=10**6)
    store = open_store(folder)
    size = sum((folder / f"{shard.name}.safetensors").stat().st_size for shard in store.shards)
    assert size == pytest.approx(planned_bytes(store.n_rows, WIDTH, "float16"), rel=0.02)


def test_a_store_larger_than_the_disk_is_refused_before_it_starts(folder: Path) -> None:
    with pytest.raises(SwitchSDError, match=r"needs 26000\.00 GB, \d+\.\d+ [GM]B are free"):
        capture(folder, expected_rows=10**12)
    assert not folder.exists()
    capture(folder, expected_rows=100)


def test_a_write_that_fails_midway_keeps_what_was_flushed(folder: Path, tmp_path: Path) -> None:
    """A real refusal by the kernel (files may not grow past a limit), as a full disk gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = {SITES[0]: torch.ones(400_000, 8), SITES[1]: torch.ones(400_000, 5)}
    columns = {k: np.repeat(v[:1], 400_000) for k, v in block(0)[2].items()}
    try:
        with (  # noqa: PT012 - the limit has to end with the block
            pytest.raises(SwitchSDError, match=r"File too large.*run the same capture again"),
            create_or_resume(folder, KEY, d=WIDTH, buffer_bytes=400_000 * ROW_BYTES) as writer,
        ):
            writer.append(*block(0))
            writer.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 2**20, hard))
            writer.append("big", big, columns)
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store = open_store(folder, partial=True, check=True)
    assert store.blocks() == {"block-0"}
    assert not list(folder.glob("**/*00001*"))  # the half-written file does not hold the space
    capture(folder)
    capture(tmp_path / "whole")
    assert torch.equal(open_store(folder).read(SITES[0]), expected(SITES[0]).float())


MEMORY = """
def status(name):
    line = next(x for x in open("/proc/self/status") if x.startswith(name + ":"))
    return int(line.split()[1]) / 1024

def characters_read():
    return int(next(x for x in open("/proc/self/io") if x.startswith("rchar")).split()[1]) / 2**20

torch.set_num_threads(1)
root = Path(sys.argv[1])
capture(root / "warm")  # libraries load on first use
open_store(root / "warm").read(SITES[0], np.array([0]))
d = {f"site-{n}": 512 for n in range(6)}
key = replace(KEY, sites=tuple(d))
block_rows = {site: torch.ones(500, 512) for site in d}
found = {}
Path("/proc/self/clear_refs").write_text("5")
before = status("VmHWM")
with create_or_resume(root / "large", key, d=d, buffer_bytes=12 * 2**20) as writer:
    buffer = writer._buffer
    found["buffer"] = sum(x.nbytes for x in buffer.values()) / 2**20
    for number in range(50):
        writer.append(str(number), block_rows, {"position": np.arange(500)})
    assert writer._buffer is buffer
found["write"] = status("VmHWM") - before
store = open_store(root / "large")
store.columns()
found["total"] = sum(p.stat().st_size for p in (root / "large").iterdir()) / 2**20
before, read = status("VmRSS"), characters_read()
x = store.read("site-3", out_dtype=torch.float16)
found["one_site"] = status("VmRSS") - before - x.nbytes / 2**20
found["one_site_characters"] = characters_read() - read
assert x.min() == x.max() == 1
del x
before = status("RssAnon")
for _, x in store.batches("site-2", 100, seed=0):
    pass
found["batches"] = status("RssAnon") - before
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures through /proc")
def test_memory_is_bounded_and_other_sites_are_not_read(tmp_path: Path) -> None:
    result = run_python(MEMORY, tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["total"] > 145
    assert found["buffer"] <= 12
    assert found["write"] < 12 + 25
    assert found["one_site"] < 145 / 6 + 25  # the mapped pages of one site of six
    assert found["one_site_characters"] < 5  # nothing is read around the mapping
    assert found["batches"] < 25
