"""The training loop: it goes on bit for bit, keeps the best weights and stops when told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.training import loop
from switchsd.decoding.training.loop import Schedule, train
from switchsd.decoding.training.texts import token_batches
from switchsd.probing.lens import Lens
from tiny_training import eagle3_task, features, greedy_texts
from torch import Tensor, nn

SCHEDULE = Schedule(passes=2.5, batch_tokens=64, lr=0.01, warmup=3, check_every=4, patience=100)


class Regression:
    """A small task; `figures` are its held-out figures, check by check."""

    def __init__(self, figures: Sequence[float] = ()) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 1))
        self.figures, self.checks, self.rows = list(figures), 0, []
        self.seen: list[list[Tensor]] = []

    def loss(self, rows: Sequence[int], seed: int) -> Tensor:
        self.rows.append(list(rows))
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed))
        return (self.model(x)[:, 0] - x.sum(-1)).square().mean()

    def evaluate(self, rows: Sequence[int]) -> list[float]:
        assert list(rows) == HELD_OUT
        self.seen.append([weight.detach().clone() for weight in self.model.parameters()])
        self.checks += 1
        return [self.figures[self.checks - 1]] if self.figures else [0.1 * self.checks, 0.05]


LENGTHS = [20 + row % 7 for row in range(40)]
ROWS, HELD_OUT = list(range(36)), [36, 37, 38, 39]


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def weights(task: Any) -> list[Tensor]:
    return [weight.detach() for weight in task.model.parameters()]


def assert_same(mine: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def stop_after(steps: int) -> Any:
    def progress(what: str, done: int, total: int) -> None:
        if done == steps:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("stop", [1, 4, 7, 13, 20])
def test_interrupted_and_gone_on_is_uninterrupted(tmp_path: Path, stop: int) -> None:
    whole = Regression()
    expected = train(whole, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "whole")
    first = Regression()
    with pytest.raises(KeyboardInterrupt):
        train(first, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "b", progress=stop_after(stop))
    second = Regression()
    with torch.no_grad():
        for weight in second.model.parameters():
            weight.zero_()  # what it goes on from is in the folder alone
    kept = (stop - 1) // SCHEDULE.check_every * SCHEDULE.check_every
    if not kept:
        second = Regression()
    second.checks = kept // SCHEDULE.check_every
    got = train(second, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "b")
    assert without_times(got) == without_times(expected)
    assert_same(weights(second), weights(whole))
    assert first.rows[:kept] + second.rows == whole.rows


def test_killed_while_the_state_is_written_nothing_is_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Regression()
    expected = train(whole, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "whole")
    true, writes, kill = loop.save_file, 0, 0

    def killed(*args: Any, **kwargs: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == kill:
            raise KeyboardInterrupt
        true(*args, **kwargs)

    monkeypatch.setattr(loop, "save_file", killed)
    for kill in range(1, 9):
        writes = 0
        with pytest.raises(KeyboardInterrupt):
            train(Regression(), LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / f"{kill}")
        writes = -1000
        got = train(Regression(), LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / f"{kill}")
        assert [row["loss"] for row in got] == [row["loss"] for row in expected]


def test_every_text_comes_once_a_pass(tmp_path: Path) -> None:
    task = Regression()
    history = train(task, LENGTHS, ROWS, HELD_OUT, replace(SCHEDULE, passes=2), tmp_path / "s")
    half = len(task.rows) // 2
    for part in (task.rows[:half], task.rows[half:]):
        assert sorted(row for batch in part for row in batch) == ROWS
    assert task.rows[:half] != task.rows[half:]
    assert history[-1]["step"] == len(task.rows)
    assert history[-1]["tokens"] == 2 * sum(LENGTHS[row] for row in ROWS)


def test_passes_of_unequal_length_go_on_into_each_other(tmp_path: Path) -> None:
    lengths = np.random.default_rng(4).integers(5, 60, 40).tolist()
    sizes = [len(token_batches(lengths, ROWS, 130, seed)) for seed in range(4)]
    assert len(set(sizes)) > 1  # else this shows nothing
    schedule = replace(SCHEDULE, passes=4, batch_tokens=130, check_every=1)
    whole = Regression()
    train(whole, lengths, ROWS, HELD_OUT, schedule, tmp_path / "whole")
    assert len(whole.rows) == 4 * sizes[0]
    for number in range(3):
        part = whole.rows[sum(sizes[:number]) : sum(sizes[: number + 1])]
        assert sorted(row for batch in part for row in batch) == ROWS
    for stop in (sizes[0], sum(sizes[:2]), sum(sizes[:3])):
        first, second = Regression(), Regression()
        with pytest.raises(KeyboardInterrupt):
            train(
                first, lengths, ROWS, HELD_OUT, schedule, tmp_path / f"{stop}",
                progress=stop_after(stop),
            )  # fmt: skip
        train(second, lengths, ROWS, HELD_OUT, schedule, tmp_path / f"{stop}")
        assert second.rows == whole.rows[stop - 1 :]  # the step it died in was not kept


def test_ends_with_the_weights_that_did_best(tmp_path: Path) -> None:
    task = Regression([0.2, 0.7, *[0.6] * 20])
    history = train(task, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "s")
    assert [row["accepted"] for row in history] == task.figures[: len(history)]
    assert len(history) > 4
    assert_same(weights(task), task.seen[1])
    again = Regression()
    assert train(again, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "s") == history
    assert again.checks == 0  # finished: nothing is trained twice
    assert_same(weights(again), task.seen[1])


def test_stops_when_it_gets_no_better(tmp_path: Path) -> None:
    impatient = replace(SCHEDULE, patience=2, passes=20.0)
    task = Regression([0.2, 0.3, 0.3, 0.1, *[0.9] * 90])  # as good as before is no better
    said: list[str] = []
    history = train(task, LENGTHS, ROWS, HELD_OUT, impatient, tmp_path / "s", say=said.append)
    assert len(history) == len(said) == 4
    assert_same(weights(task), task.seen[1])
    again = Regression([0.9] * 90)
    assert train(again, LENGTHS, ROWS, HELD_OUT, impatient, tmp_path / "s") == history
    assert again.checks == 0
    assert_same(weights(again), task.seen[1])


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path) -> None:
    task = Regression()
    task.loss = lambda rows, seed: task.model(torch.full((1, 3), torch.nan)).sum()  # type: ignore[method-assign]
    with pytest.raises(SwitchSDError, match=r"loss is nan at step 0.*lower lr"):
        train(task, LENGTHS, ROWS, HELD_OUT, SCHEDULE, tmp_path / "s")


def test_a_head_goes_on_bit_for_bit(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama", num_hidden_layers=5)
    data = features(lens, greedy_texts(lens), tmp_path / "store")
    rows, held = list(range(9)), [9, 10, 11]
    schedule = replace(SCHEDULE, check_every=3)
    whole = eagle3_task(lens, data)
    expected = train(whole, data.lengths, rows, held, schedule, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(
            eagle3_task(lens, data), data.lengths, rows, held, schedule, tmp_path / "b",
            progress=stop_after(5),
        )  # fmt: skip
    second = eagle3_task(lens, data)
    got = train(second, data.lengths, rows, held, schedule, tmp_path / "b")
    assert without_times(got) == without_times(expected)
    assert_same(weights(second), weights(whole))
    assert expected[-1]["loss"] < expected[0]["loss"]
