"""The demo at a small size: all its figures, going on after an interrupt, running again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from switchsd.analysis.bench.demo import POLICIES
from switchsd.analysis.bench.race import race_table
from switchsd.decoding.shipped import has_shipped_head
from switchsd.probing.lens import Lens
from switchsd.runs import Run, list_runs

pytestmark = pytest.mark.model
SMALL = ["--prompts", "35", "--problems", "2"]


def test_interrupted_demo_goes_on_and_reports_everything(
    lens: Lens, switchsd: Callable[..., Any], tmp_path: Path
) -> None:
    """Interrupted in a process of its own, as from a terminal; going on in this one."""
    policies = [p for p in POLICIES if p != "eagle3" or has_shipped_head(lens)]
    folder = tmp_path / "demo"
    first = subprocess.Popen(
        [sys.executable, "-m", "switchsd", "demo", "--run", str(folder), *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a background job's children inherit an ignored SIGINT; here it has to arrive
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    store = folder / "activations" / "manifest.json"
    limit = time.monotonic() + 1200  # a loaded machine takes that long
    while not store.is_file() and first.poll() is None and time.monotonic() < limit:
        time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate(timeout=120)
    assert first.returncode == 130, stderr
    assert b"goes on" in stderr
    assert b"Traceback" not in stderr
    corpus = folder / "corpus" / "corpus.parquet"
    written = corpus.stat().st_mtime_ns

    done = switchsd("demo", "--run", str(folder), *SMALL)
    assert done.returncode == 0, done.stderr
    assert corpus.stat().st_mtime_ns == written
    assert f"{folder / 'report.html'}" in done.stdout
    run = Run(folder)
    assert run.manifest()["state"] == "complete"
    metrics = run.metrics()
    assert metrics["dtype"] == "float32"
    assert metrics["seconds"] > 0
    probe = metrics["probe"]
    assert 0.5 < probe["auroc"] <= 1
    assert probe["auroc_low"] <= probe["auroc"] <= probe["auroc_high"]
    assert {"site", "tau", "label_offset", "f1", "f1_always_copy", "n_test_tokens"} <= set(probe)
    assert len(metrics["sites"]) == 30 * 4
    rows = {row["policy"]: row for row in metrics["decoding"]}
    assert list(rows) == policies
    for row in rows.values():
        assert row["token_exact"] is True
        assert row["n_prompts"] == 2
        assert row["tokens_per_s"] > 0
    assert rows["vanilla"]["speedup"] == 1
    assert rows["vanilla"]["copy_step_share"] == 0
    assert rows["pld"]["copy_step_share"] > 0
    steps, tokens = run.table("steps"), run.table("tokens")
    neural = set(steps.loc[steps["path"] == "neural", "policy"])
    assert neural == ({"copyspec", "eagle3", "switchsd"} if "eagle3" in policies else set())
    by = ["prompt_id", "policy"]
    new = tokens[tokens["step"] >= 0].groupby(by).size()
    assert (steps.groupby(by)["emitted"].sum() == new).all()
    assert (folder / "report.html").stat().st_size > 10_000
    assert list((folder / "figures").glob("*.html"))
    # by hand: pooled tokens over pooled seconds
    again = race_table(run_table(folder, "runs"), steps, policies)
    assert again["tokens_per_s"].tolist() == pytest.approx(
        [row["tokens_per_s"] for row in metrics["decoding"]]
    )


def run_table(folder: Path, part: str):
    import pandas as pd

    return pd.concat(pd.read_parquet(p) for p in sorted(folder.glob(f"decoded/*/{part}.parquet")))


def test_speed_is_pooled_tokens_over_pooled_seconds() -> None:
    import pandas as pd

    runs = pd.DataFrame(
        {
            "prompt_id": ["a", "b", "a", "b"],
            "policy": ["vanilla", "vanilla", "pld", "pld"],
            "n_tokens": [10, 30, 10, 30],
            "decode_s": [1.0, 7.0, 1.0, 3.0],
            "token_exact": [True, True, True, False],
        }
    )
    steps = pd.DataFrame(
        {
            "policy": ["vanilla", "pld", "pld", "pld", "pld", "pld"],
            "path": ["plain", "copy", "copy", "plain", "neural", "neural"],
            "accepted": [0, 4, 1, 0, 3, 0],
            "proposed": [0, 10, 10, 0, 5, 0],
        }
    )
    table = race_table(runs, steps, ["vanilla", "pld"]).set_index("policy")
    assert table["tokens_per_s"].tolist() == [5, 10]
    assert table["speedup"].tolist() == [1, 2]
    assert table["copy_step_share"].tolist() == [0, pytest.approx(2 / 5)]
    assert table.loc["pld", "mean_accepted"] == 2.5
    assert table.loc["pld", "neural_accepted"] == 3  # where a draft was verified
    assert table["token_exact"].tolist() == [True, False]


def test_running_again_moves_the_old_run_aside(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "demo", command="demo", config={"a": 1})
    run.finish()
    Run.start(tmp_path / "demo", command="demo", config={"a": 1})
    assert len(list_runs(tmp_path)) == 2
