"""The exactness suite: a slice always, everything in `make test-all`; and that it can fail."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.exactness import greedy as exactness
from switchsd.decoding.exactness import tiny as exactness_tiny
from switchsd.decoding.exactness.greedy import greedy_rows
from switchsd.decoding.exactness.kv_walk import kv_walk_errors
from switchsd.decoding.exactness.sampled import Enumerated, distance
from switchsd.decoding.exactness.suite import (
    FULL,
    KV_ERROR,
    SLICE,
    copying,
    find_drafts,
    greedy_policies,
    is_exact,
    run_exactness,
)
from switchsd.decoding.exactness.tiny import TinyParts, tiny_lens
from switchsd.decoding.policies import POLICIES, build_policy
from switchsd.decoding.shipped import has_shipped_head
from switchsd.decoding.step.sampling import Sampling
from switchsd.probing.kv import KV
from switchsd.probing.lens import Lens
from switchsd.probing.loading import load
from switchsd.probing.shipped import shipped_probe
from tiny_models import probe_for

RUNS = Path(__file__).resolve().parents[2] / "runs"
SMALL = replace(SLICE, prompts=2, new_tokens=40, grid_tokens=16, engine=600)
"""600 samples of a policy tell a forgotten top-p or repetition penalty every time, a temperature of
1 for 1.3 two times in three; 2,000 (the slice) and 10,000 (the whole) see smaller faults."""


def assert_exact(run_folder: Path, lens: Lens, sizes, shared_data: Path) -> None:
    metrics = run_exactness(
        lens, shipped_probe(lens), run_folder, sizes, data_dir=shared_data, load=load
    ).metrics()
    greedy = {row["policy"]: row for row in metrics["greedy"]}
    assert set(POLICIES) <= set(greedy)
    for name in copying():  # the whole grid, the defaults' corner too
        wide = (1, 4) if name in ("switchsd", "bandit-ucb") else (1,)
        assert {f"{name} W={W} D={D}" for W in wide for D in (1, 10, 20)} <= set(greedy)
    for row in greedy.values():
        assert row["mismatches"] == 0, row
        assert row["tokens"] > 0
    needed = ["pld", "copyspec", "suffix", "sps", "bandit-ucb", "switchsd"]
    if has_shipped_head(lens):  # one with random weights has nothing accepted
        needed += ["eagle3", "eagle3-tree"]
    assert metrics["drafts"]["eagle3"].startswith("shipped") == has_shipped_head(lens)
    for name in needed:
        # without these the check would prove nothing
        assert greedy[name]["multi_accepts"] > 0, name
        assert greedy[name]["rejections"] > 0, name
    for row in metrics["sampling"]:
        assert row["fine"], row
    assert metrics["kv_max_error"] <= KV_ERROR
    assert is_exact(metrics)


@pytest.mark.model
def test_slice(lens: Lens, shared_data: Path) -> None:
    assert_exact(RUNS / "exactness-slice", lens, SMALL, shared_data)


@pytest.mark.model
@pytest.mark.slow
def test_everything(lens: Lens, shared_data: Path) -> None:
    assert_exact(RUNS / "exactness", lens, FULL, shared_data)


def test_enumeration_sums_to_one_and_follows_the_settings() -> None:
    lens = tiny_lens()
    plain = Enumerated.of(lens, (1, 2), 2, Sampling(temperature=1.0))
    assert sum(plain.probabilities().values()) == pytest.approx(1)
    by_hand = torch.softmax(lens.forward(torch.tensor([[1, 2, 3]])).logits[0, -1].double(), 0)
    assert torch.allclose(plain.table[(3,)], by_hand)
    cut = Enumerated.of(lens, (1, 2), 2, Sampling(temperature=1.0, top_k=2))
    assert sum(p > 0 for p in cut.probabilities().values()) == 4


def test_a_small_bias_is_seen() -> None:
    target = Enumerated.of(tiny_lens(), (1, 2), 2, Sampling(temperature=1.0))
    exact = target.probabilities()
    n = 20_000
    fair = Counter({text: round(n * p) for text, p in exact.items()})
    assert distance(fair, target).fine
    best = max(exact, key=exact.__getitem__)
    worst = min(exact, key=exact.__getitem__)
    biased = fair + Counter({best: n // 25}) - Counter({worst: n // 25})
    assert not distance(biased, target).fine


def test_a_wrong_token_is_counted(tiny: Callable[..., Lens], tmp_path: Path, monkeypatch) -> None:
    lens = tiny("llama")
    right = exactness.reference_ids

    def off_by_one(*args):
        ids = right(*args)
        return [*ids[:-1], (ids[-1] + 1) % 32, 7]

    policies = {"pld": build_policy("pld")}
    prompts = {"a": [3, 1, 4, 1, 5, 9]}
    rows = greedy_rows(lens, prompts, policies, tmp_path / "a", max_new_tokens=12)
    assert rows["mismatches"].tolist() == [0]
    monkeypatch.setattr(exactness, "reference_ids", off_by_one)
    rows = greedy_rows(lens, prompts, policies, tmp_path / "b", max_new_tokens=12)
    assert rows["mismatches"].tolist() == [2]  # one other token and one too many
    # what is on disk is not decoded again
    again = greedy_rows(lens, prompts, policies, tmp_path / "a", max_new_tokens=12)
    assert again["mismatches"].tolist() == [0]


def test_a_cache_that_gathers_wrongly_is_seen(tiny: Callable[..., Lens], monkeypatch) -> None:
    lens = tiny("llama")
    assert max(kv_walk_errors(lens, 6)) < KV_ERROR
    commit = KV.commit

    def first_branch(self, base, path):
        commit(self, base, list(range(len(path))))  # as if the accepted path were always the first

    monkeypatch.setattr(KV, "commit", first_branch)
    assert max(kv_walk_errors(lens, 6)) > 1e-3


@pytest.mark.long
def test_tiny_parts_run_beside_and_are_read_afterwards(tmp_path: Path, monkeypatch) -> None:
    parts = TinyParts(tmp_path, verification=40, engine=2, kv_walks=4)

    def here(*_args, **_kwargs):
        raise AssertionError("computed in this process")

    for name in ("sample_verification", "sample_engine", "kv_walk_errors"):
        monkeypatch.setattr(exactness_tiny, name, here)  # another process imports its own
    told: list[tuple[str, int, int]] = []
    threads = torch.get_num_threads()
    with parts.beside(lambda *what: told.append(what)) as report:
        report("greedy", 1, 2)
    assert torch.get_num_threads() == threads
    assert ("greedy", 1, 2) in told
    pieces = 2 * len(POLICIES) + 3
    assert parts.finished() == (pieces, pieces)
    assert told[-1] == ("tiny models", pieces, pieces)
    rows, errors = parts.sampling(), parts.kv_errors()
    assert [row["policy"] for row in rows] == 2 * list(POLICIES)
    assert {row["samples"] for row in rows} == {40, 2}
    assert len(errors) == 4
    assert 0 < max(errors) < KV_ERROR
    monkeypatch.undo()
    # what is missing is made again, the same
    walked = sorted((tmp_path / "kv").iterdir())
    walked[0].unlink()
    sampled = tmp_path / "sampling" / "eagle3-engine.json"
    sampled.unlink()
    assert parts.finished() == (pieces - 2, pieces)
    again = parts.kv_errors()
    assert 0 < max(again) < KV_ERROR
    # one model's two walks were made anew, perhaps with other threads and so other last bits
    assert sum(mine == theirs for mine, theirs in zip(again, errors, strict=True)) >= 2
    assert parts.sampling() == rows


def _leave_a_note(folder: Path) -> None:
    (folder / "note").write_text(str(torch.get_num_threads()))


@pytest.mark.long
def test_the_other_process_goes_on_with_something_else(tmp_path: Path) -> None:
    parts = TinyParts(tmp_path, verification=2, engine=1, kv_walks=1)
    threads = torch.get_num_threads()
    half = max(1, threads // 2)
    with parts.beside(then=partial(_leave_a_note, tmp_path)):
        assert torch.get_num_threads() == max(1, threads - half)
    assert torch.get_num_threads() == threads
    assert (tmp_path / "note").read_text() == str(half)
    assert parts.finished()[0] == parts.finished()[1]


def test_two_processes_meet_in_the_middle(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    policies = {"pld": build_policy("pld")}
    prompts = {f"p{i}": [3, 1, 4, 1, 5, 9, i] for i in range(4)}
    alone = greedy_rows(lens, prompts, policies, tmp_path / "alone", max_new_tokens=6)

    def stop_after_two(_what: str, done: int, _total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        greedy_rows(
            lens, prompts, policies, tmp_path / "both",
            max_new_tokens=6, backwards=True, progress=stop_after_two,
        )  # fmt: skip
    seen = sorted(file.name for file in (tmp_path / "both").iterdir())
    assert seen == ["0002.parquet", "0003.parquet"]
    both = greedy_rows(lens, prompts, policies, tmp_path / "both", max_new_tokens=6)
    assert both.equals(alone)


def test_an_interrupt_ends_the_other_process_too(tmp_path: Path) -> None:
    parts = TinyParts(tmp_path, verification=10**9, engine=1, kv_walks=1)

    def interrupted() -> None:
        with parts.beside():
            assert len(multiprocessing.active_children()) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    limit = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < limit:
        time.sleep(0.1)
    assert not multiprocessing.active_children()


def test_every_policy_is_decoded_where_nothing_is_shipped(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    drafts = find_drafts(lens)
    assert drafts.head is None
    assert not any("shipped" in name for name in drafts.files.values())
    for grid in (False, True):
        policies = greedy_policies(lens, probe_for(lens), drafts, grid=grid)
        for name, policy in policies.items():
            neural = policy.neural is not None
            assert neural == name.startswith(("sps", "eagle3", "switchsd")), name
    assert len(policies) == 16


def test_other_dtypes_are_refused(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    half = type(lens)("half", lens.model.bfloat16(), None, "live")
    with pytest.raises(SwitchSDError, match="float32"):
        run_exactness(half, None, tmp_path, SLICE)  # type: ignore[arg-type]
    lens.model.float()
