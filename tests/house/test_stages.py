"""Stages: read where nothing changed, redone where something did, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from switchsd import SwitchSDError
from switchsd.runs import Run
from switchsd.stages import open_run, stage


def counted(calls: list[int], value: int) -> pd.DataFrame:
    calls.append(value)
    return pd.DataFrame({"x": [value]})


def test_a_finished_stage_is_read(tmp_path: Path) -> None:
    run, calls = Run.start(tmp_path / "r", command="c", config={}), []
    first = stage(run, "t", {"a": 1}, lambda: counted(calls, 1))
    again = stage(run, "t", {"a": 1}, lambda: counted(calls, 2))
    assert calls == [1]
    assert again.table["x"].tolist() == [1]
    assert first.digest == again.digest


def test_a_changed_input_redoes_it_and_keeps_the_old_table(tmp_path: Path) -> None:
    run, calls = Run.start(tmp_path / "r", command="c", config={}), []
    first = stage(run, "t", {"a": 1}, lambda: counted(calls, 1))
    second = stage(run, "t", {"a": 2}, lambda: counted(calls, 2))
    stage(run, "t", {"a": 3}, lambda: counted(calls, 3))
    assert calls == [1, 2, 3]
    assert first.digest != second.digest
    kept = [pd.read_parquet(p)["x"].item() for p in sorted((run.path / "aside").glob("*.parquet"))]
    assert kept == [1, 2]


def test_a_table_that_was_changed_by_hand_is_redone(tmp_path: Path) -> None:
    run, calls = Run.start(tmp_path / "r", command="c", config={}), []
    stage(run, "t", {"a": 1}, lambda: counted(calls, 1))
    pd.DataFrame({"x": [99]}).to_parquet(run.path / "t.parquet")
    assert stage(run, "t", {"a": 1}, lambda: counted(calls, 1)).table["x"].tolist() == [1]
    assert calls == [1, 1]
    (run.path / "t.parquet").write_bytes(b"half")
    stage(run, "t", {"a": 1}, lambda: counted(calls, 1))
    assert calls == [1, 1, 1]


def test_a_failure_leaves_no_stamp(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "r", command="c", config={})
    with pytest.raises(ZeroDivisionError):
        stage(run, "t", {}, lambda: pd.DataFrame({"x": [1 / 0]}))
    assert not (run.path / "stages" / "t.json").exists()
    assert not run.has_table("t")


def test_a_finished_run_goes_on_and_another_config_moves_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "r"
    run = open_run(path, command="c", config={"n": 1, "path": None})
    run.update_metrics(kept=1)
    run.finish()
    again = open_run(path, command="c", config={"n": 1, "path": None})
    assert again.metrics() == {"kept": 1}
    assert again.manifest()["state"] == "running"
    with pytest.raises(SwitchSDError, match="written by another run"):
        open_run(path, command="c", config={"n": 1, "path": None})
    again.finish()
    other = open_run(path, command="c", config={"n": 2, "path": None})
    assert other.metrics() == {}
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("r-")]) == 1


def test_a_failure_leaves_the_old_table_where_it_was(tmp_path: Path) -> None:
    run, calls = Run.start(tmp_path / "r", command="c", config={}), []
    stage(run, "t", {"a": 1}, lambda: counted(calls, 1))
    with pytest.raises(ZeroDivisionError):
        stage(run, "t", {"a": 2}, lambda: pd.DataFrame({"x": [1 / 0]}))
    assert stage(run, "t", {"a": 1}, lambda: counted(calls, 2)).table["x"].tolist() == [1]
    assert calls == [1]
