"""The demo at a small size: all its figures, going on after an interrupt, running again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from switchsd.analysis.bench.demo import POLICIES, copy_yields, decoding_rows
from switchsd.analysis.bench.race import Race
from switchsd.data.context_index import SPAN
from switchsd.decoding.shipped import has_shipped_head
from switchsd.probing.lens import Lens
from switchsd.runs import Run, list_runs
from tiny_models import probe_for

SMALL = ["--prompts", "25", "--problems", "1"]


@pytest.mark.model
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
        assert row["n_prompts"] == 1
        assert row["tokens_per_s"] > 0
    assert rows["vanilla"]["speedup"] == 1
    assert rows["vanilla"]["copy_share"] == 0
    assert rows["pld"]["copy_share"] > 0
    steps, tokens = run.table("steps"), run.table("tokens")
    neural = set(steps.loc[steps["path"] == "neural", "policy"])
    assert neural == ({"copyspec", "eagle3", "switchsd"} if "eagle3" in policies else set())
    by = ["prompt_id", "policy"]
    new = tokens[tokens["step"] >= 0].groupby(by).size()
    assert (steps.groupby(by)["emitted"].sum() == new).all()
    assert (folder / "report.html").stat().st_size > 10_000
    assert list((folder / "figures").glob("*.html"))
    # by hand: pooled tokens over pooled seconds
    pooled = steps.groupby("policy")[["emitted", "ms"]].sum()
    speeds = 1e3 * pooled["emitted"] / pooled["ms"]
    assert [row["tokens_per_s"] for row in rows.values()] == pytest.approx(
        speeds[policies].tolist()
    )


def test_a_first_look_keeps_of_the_rows_what_it_asks_for() -> None:
    runs = pd.DataFrame(
        {
            "set": "s",
            "prompt_id": ["a", "b", "a", "b"],
            "policy": ["vanilla", "vanilla", "pld", "pld"],
            "prefill_s": 0.1,
            "draft_prefill_s": 0.0,
            "token_exact": [True, True, True, False],
        }
    )
    names = ["policy", "prompt_id", "path", "accepted", "proposed", "ms"]
    rows = [
        ("vanilla", "a", "plain", 0, 0, 1000.0),
        ("vanilla", "b", "plain", 0, 0, 7000.0),
        ("pld", "a", "copy", 4, 10, 500.0),
        ("pld", "a", "copy", 1, 10, 500.0),
        ("pld", "b", "plain", 0, 0, 1000.0),
        ("pld", "b", "neural", 3, 5, 1000.0),
        ("pld", "b", "neural", 0, 5, 1000.0),
    ]
    steps = pd.DataFrame(rows, columns=names).assign(set="s", position=10, loop=99)
    steps["emitted"] = [10, 30, 5, 5, 10, 10, 10]
    table = decoding_rows(Race(runs, steps, pd.DataFrame()), ["vanilla", "pld"])
    table = table.set_index("policy")
    assert table["tokens_per_s"].tolist() == [5, 10]
    assert table["speedup"].tolist() == [1, 2]
    assert table["copy_share"].tolist() == [0, pytest.approx(2 / 5)]
    assert table.loc["pld", "mean_accepted_copy"] == 2.5
    assert table.loc["pld", "mean_accepted_neural"] == 1.5
    assert table.loc["pld", "mean_accepted"] == 2  # of every step that drafted
    assert table["token_exact"].tolist() == [True, False]


@pytest.mark.parametrize("offset", [0, 2])
def test_a_copys_score_is_read_before_its_anchor(tiny: Callable[..., Lens], offset: int) -> None:
    probe = replace(probe_for(tiny("llama")), label_offset=offset, tau=0.5)
    ids = [*range(5), *[7, 8, 9] * 12]
    scores = np.linspace(0, 1, len(ids))  # at each processed position
    about = [scores[p - offset] if p >= offset else np.nan for p in range(len(ids))]
    tokens = pd.DataFrame(
        {"prompt_id": "p", "policy": "switchsd", "id": ids, "step": [-1] * 5 + [0] * 36,
         "score": about}
    )  # fmt: skip
    table = copy_yields(tokens, probe)
    assert table["position"].tolist() == list(range(5, len(ids) - SPAN + 1))
    assert table["score"].tolist() == [scores[p - 2] for p in table["position"]]
    assert (table["probe_on"] == (table["score"] >= 0.5)).all()
    assert table["in_loop"].all()
    assert copy_yields(tokens, probe, policy="pld").empty


def test_running_again_moves_the_old_run_aside(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "demo", command="demo", config={"a": 1})
    run.finish()
    Run.start(tmp_path / "demo", command="demo", config={"a": 1})
    assert len(list_runs(tmp_path)) == 2
