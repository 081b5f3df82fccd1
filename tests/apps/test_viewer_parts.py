"""Acceptance figures, speeds of runs, and the decoding in the background, without a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from demo_run import copy_yield, make_run
from switchsd.analysis.bench.speeds import compare, run_speeds
from switchsd.analysis.figures.acceptance import HeatRow, acceptance_by_set, paths_heatmap
from switchsd.analysis.replay.acceptance import (
    by_path,
    by_probe_state,
    maximum_ratio,
    yields_of_positions,
)
from switchsd.apps.view import job as viewer_job
from switchsd.apps.view.job import LONGEST_PROMPT, Job, Request, check_fits, check_prompt
from switchsd.errors import SwitchSDError
from switchsd.probing.lens import Lens
from switchsd.runs import Run
from tiny_traces import made_up


@pytest.fixture
def yields() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    tables = [copy_yield(rng, 100).assign(prompt_id=f"{name}/{k}")
              for name in ("HumanEval", "math") for k in range(3)]  # fmt: skip
    table = pd.concat(tables, ignore_index=True)
    table.loc[table.index[~table["probe_on"]][::40], "accepted"] = 20
    return table


def test_acceptance_by_probe_state_counts_and_brackets(yields: pd.DataFrame) -> None:
    table = by_probe_state(yields)
    assert table["set"].unique().tolist() == ["all", "HumanEval", "math"]
    on = yields[yields["probe_on"]]
    row = table[(table["set"] == "all") & (table["probe"] == "on")].iloc[0]
    assert row["n"] == len(on)
    assert row["mean"] == pytest.approx(on["accepted"].mean())
    assert row["maximum"] == pytest.approx((on["accepted"] == 20).mean())
    assert row["mean_low"] < row["mean"] < row["mean_high"]
    off = yields[~yields["probe_on"]]
    ratio = (on["accepted"] == 20).mean() / (off["accepted"] == 20).mean()
    assert maximum_ratio(table)["all"] == pytest.approx(ratio)


def test_one_prompt_has_no_interval_and_an_empty_state_no_mean(yields: pd.DataFrame) -> None:
    alone = yields[yields["prompt_id"] == "math/0"].assign(probe_on=True)
    table = by_probe_state(alone)
    assert table["set"].tolist() == ["all", "all"]
    assert np.isnan(table["mean_low"].iloc[0])
    assert table["n"].tolist() == [len(alone), 0]
    assert np.isnan(table["mean"].iloc[1])


def test_the_figure_draws_the_summary(yields: pd.DataFrame) -> None:
    summary = by_probe_state(yields)
    drawn = acceptance_by_set(summary, "mean")
    on = summary[summary["probe"] == "on"]
    assert list(drawn.data[0].y) == on["mean"].tolist()
    assert list(drawn.data[0].error_y.array) == pytest.approx(
        (on["mean_high"] - on["mean"]).tolist()
    )


def test_the_heat_map_draws_every_path_on_its_own_scale() -> None:
    table = pd.DataFrame({"score": [0.25, 1.0], "eagle3": [np.nan, 5.0]}, index=[7, 8])
    rows = [HeatRow("probe score, %", "score", 1.0), HeatRow("EAGLE-3", "eagle3", 10)]
    heat = paths_heatmap(table, rows).data[0]
    assert list(heat.x) == [7, 8]
    assert list(heat.y) == ["probe score, %", "EAGLE-3"]
    assert np.array_equal(np.array(heat.z), [[0.25, 1.0], [np.nan, 0.5]], equal_nan=True)
    assert [list(row) for row in heat.text] == [["0.25", "1.00"], ["no candidate", "5"]]


def test_paths_leave_plain_steps_out(tmp_path: Path) -> None:
    steps = make_run(tmp_path).table("steps")
    table = by_path(steps)
    assert table["path"].unique().tolist() == ["copy"]
    assert table["n"].iloc[0] == (steps["path"] == "copy").sum()


def test_yields_of_a_trace_are_the_newest_candidates_where_there_is_room() -> None:
    positions = made_up(tokens=40).positions
    table = yields_of_positions(positions, 0.6, n=2, span=10)
    kept = positions[positions["limit"] >= 10]
    assert table["accepted"].tolist() == [int(v[0]) if len(v) else 0 for v in kept["copy_n2"]]
    assert table["probe_on"].tolist() == (kept["score"] >= 0.6).tolist()


def test_speeds_of_every_kind_of_run_and_their_comparison(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    old = {"copy_share": "copy_step_share", "mean_accepted_copy": "mean_accepted"}
    run.write_table("decoding", run.table("decoding").rename(columns=old))  # of version 0.1
    demo = run_speeds(run)
    assert demo["copy_share"].tolist() == [0.0, 0.41, 0.3, 0.123]
    assert run.table("decoding")["mean_accepted_copy"].iloc[-1] == 4.56
    steps = run.table("steps").query("policy == 'pld' and path != 'plain'")
    assert demo.set_index("policy")["mean_accepted"]["pld"] == steps["accepted"].mean()
    bench = Run.start(tmp_path / "bench", command="bench", config={})
    rows = [("all", "pld", 50.0, 2.0, 0.4, 1.1), ("all", "other", 1.0, 0.1, 0.0, 0.0)]
    columns = ["set", "policy", "tokens_per_s", "speedup", "copy_share", "mean_accepted"]
    bench.write_table("rows", pd.DataFrame(rows, columns=columns))
    both = compare(demo, run_speeds(bench))
    assert both["policy"].tolist() == ["pld"]
    assert both["speed_ratio"].iloc[0] == pytest.approx(50 / 25)
    replay = Run.start(tmp_path / "replay", command="replay", config={})
    replay.write_table(
        "replay",
        pd.DataFrame({"set": "all", "policy": "switchsd", "tau": [0.3, 0.5], "tokens_per_s": 1.0}),
    )
    assert run_speeds(replay)["policy"].tolist() == ["switchsd tau=0.3", "switchsd tau=0.5"]
    with pytest.raises(SwitchSDError, match="no table of speeds yet"):
        run_speeds(Run.start(tmp_path / "empty", command="bench", config={}))


def test_a_job_decodes_and_is_stopped(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    job = Job.start(_request("vanilla", max_new_tokens=5), lambda *_: lens)
    _wait(job)
    assert job.state == "failed"  # a text prompt needs a tokenizer
    assert "tokenizer" in job.said


def test_whatever_goes_wrong_is_a_sentence() -> None:
    def no_memory(*_: str) -> Lens:
        raise MemoryError

    def broken(*_: str) -> Lens:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    for load in (no_memory, broken):
        job = Job.start(_request("vanilla"), load)
        _wait(job)
        assert job.state == "failed"
        assert "does not fit into memory" in job.said
    job = Job.start(_request("vanilla", prompt="   "), no_memory)
    _wait(job)
    assert "empty" in job.said


def test_an_enormous_prompt_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SwitchSDError, match="shorten it"):
        check_prompt("x" * (LONGEST_PROMPT + 1))


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    check_fits(str(tmp_path), "bfloat16", 1000)
    with pytest.raises(SwitchSDError, match="does not fit into memory in float32"):
        check_fits(str(tmp_path), "float32", 1999)
    check_fits(str(tmp_path), "float32", None)
    check_fits("some/hub-id", "float32", 1)


def test_a_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "switchsd.apps.commands.options.load_lens", lambda *a: asked.append(a[0]) or a[0]
    )
    monkeypatch.setattr(viewer_job, "_loaded", {})
    for name in ("a", "a", "b", "b", "a"):
        viewer_job.lens_once(name, "cpu", "float32")
    assert asked == ["a", "b", "a"]


def _request(policy: str, **changes: object) -> Request:
    given = {"prompt": "one two three", "raw": True, "max_new_tokens": 8, **changes}
    return Request("tiny", "cpu", "float32", policy, **given)  # type: ignore[arg-type]


def _wait(job: Job) -> None:
    until = time.monotonic() + 30
    while job.running and time.monotonic() < until:
        time.sleep(0.02)
    assert not job.running
