"""Run folders: whole files, own keys only, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from switchsd import SwitchSDError
from switchsd.runs import Run, list_runs, read_parquet


def start(path: Path, **config) -> Run:
    return Run.start(path, command="demo", config=config)


def test_unfinished_run_goes_on_and_a_finished_one_moves_aside(tmp_path: Path) -> None:
    run = start(tmp_path / "demo", n=1)
    run.update_metrics(a=1)
    run.write_table("t", pd.DataFrame({"x": [1]}))
    del run  # the process that ran it has ended
    again = start(tmp_path / "demo", n=1)
    assert again.metrics() == {"a": 1}
    again.finish()
    new = start(tmp_path / "demo", n=1)
    assert new.metrics() == {}
    assert len(list_runs(tmp_path)) == 2
    (aside,) = [r for r in list_runs(tmp_path) if r.path != new.path]
    assert aside.metrics() == {"a": 1}
    assert aside.table("t")["x"].tolist() == [1]


def test_another_config_moves_an_unfinished_run_aside(tmp_path: Path) -> None:
    start(tmp_path / "demo", n=1).update_metrics(a=1)
    assert start(tmp_path / "demo", n=2).metrics() == {}
    start(tmp_path / "demo", n=3)
    assert len(list_runs(tmp_path)) == 3  # two within one second still get names of their own


def test_a_command_updates_only_its_own_keys(tmp_path: Path) -> None:
    run = start(tmp_path / "r")
    run.update_metrics(mine=1, other={"b": 2})
    run.update_metrics(mine=np.float32(3), bad=float("nan"))
    text = (tmp_path / "r" / "metrics.json").read_text()
    assert json.loads(text) == {"mine": 3, "other": {"b": 2}, "bad": None}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    run = start(tmp_path / "r")
    run.update_metrics(a=1)
    with pytest.raises(TypeError):
        run.update_metrics(a=object())
    assert run.metrics() == {"a": 1}
    (tmp_path / "file").write_text("")
    with pytest.raises(SwitchSDError, match="cannot write"):
        Run(tmp_path / "file" / "run").write_table("t", pd.DataFrame({"x": [1]}))


def test_what_is_no_run_is_never_moved(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("words")
    (tmp_path / "file").write_text("words")
    for path in (tmp_path / "precious", tmp_path / "file", tmp_path / "file" / "x", Path(".")):
        with pytest.raises(SwitchSDError):
            start(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "precious"]
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "words"


def test_a_start_killed_before_its_manifest_is_no_dead_end(tmp_path: Path) -> None:
    (tmp_path / "demo" / "figures").mkdir(parents=True)
    (tmp_path / "demo" / ".lock").touch()
    assert start(tmp_path / "demo", n=1).manifest()["state"] == "running"
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
    (tmp_path / "mine" / "figures").mkdir(parents=True)
    (tmp_path / "mine" / "figures" / "drawing.svg").touch()
    with pytest.raises(SwitchSDError, match="no run"):
        start(tmp_path / "mine")


def test_two_writers_of_one_run_are_refused(tmp_path: Path) -> None:
    run = start(tmp_path / "demo", n=1)
    for n in (1, 2):
        with pytest.raises(SwitchSDError, match="another run"):
            start(tmp_path / "demo", n=n)
    run.finish()
    assert start(tmp_path / "demo", n=1).metrics() == {}


def test_a_damaged_manifest_moves_aside(tmp_path: Path) -> None:
    start(tmp_path / "demo", n=1).finish()
    (tmp_path / "demo" / "manifest.json").write_text("{")
    assert start(tmp_path / "demo", n=1).manifest()["state"] == "running"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "x"}', '{"schema": 99}'])
def test_damaged_and_newer_manifests_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SwitchSDError, match=r"manifest\.json"):
        Run(tmp_path).manifest()


def test_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(SwitchSDError, match="damaged"):
        read_parquet(tmp_path / "t.parquet")
    with pytest.raises(SwitchSDError, match="does not exist"):
        read_parquet(tmp_path / "u.parquet")


def test_columns_of_version_0_1_have_their_names_of_today(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    old = {
        "decoding": ["copy_step_share", "mean_accepted", "neural_accepted"],
        "rows": ["copy_accepted", "copy_accepted_without_loops", "mean_accepted"],
        "table1": ["copy_steps", "draft_accepted_without_loops"],
    }
    new = {
        "decoding": ["copy_share", "mean_accepted_copy", "mean_accepted_neural"],
        "rows": ["mean_accepted_copy", "mean_accepted_copy_without_loops", "mean_accepted"],
        "table1": ["copy_share", "mean_accepted_neural_without_loops"],
    }
    for table, columns in old.items():
        run.write_table(table, pd.DataFrame([range(len(columns))], columns=columns))
        assert list(run.table(table)) == new[table]
    today = pd.DataFrame([[1, 2]], columns=["copy_share", "mean_accepted"])
    run.write_table("decoding", today)
    assert list(run.table("decoding")) == list(today)
