"""The lab from corpus to metrics on a random-weight model: it goes on, and it chooses alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd.analysis.pages.run_figures import probing_figures, write_probing_figures
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lab.lab import Lab, LabConfig, open_lab
from switchsd.probing.lab.named_studies import STUDIES
from switchsd.probing.lab.timings import capture_against_forward, sweep_against_sklearn
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from switchsd.progress import silent
from tiny_models import tiny_model

CONFIG = LabConfig(
    n_prompts=36,
    completion_tokens=24,
    sweep_prompts=30,
    candidates=3,
    eval_prompts=4,
    eval_tokens=24,
    given_tokens=1500,
)
KEYS = {
    *("auroc", "auroc_low", "auroc_high", "f1", "f1_always_copy", "auroc_given_match"),
    *("surface_auroc_given_match", "both_auroc_given_match", "gain_given_match_low"),
    *("label_auroc_given_match", "both_gain_given_match_low"),
    *("prevalence", "loop_share", "set"),
}


def open_small(path: Path, lens: Lens, data: Path, **changes: Any) -> Lab:
    values = {**CONFIG.__dict__, "data_dir": str(data), **changes}
    return open_lab(
        lambda: lens,
        path,
        LabConfig(**values),
        model="tiny",
        dtype="float32",
        device="cpu",
        progress=silent,
    )


@pytest.fixture(scope="module")
def small(tokenizer: Any) -> Lens:
    """Random weights, tied and small: greedy text repeats itself, sampled text does not."""
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": 8192, "hidden_size": 24}
    model = tiny_model("llama", **shape, tie_word_embeddings=True, initializer_range=0.1)
    return wrap(model, tokenizer, name="tiny")


@pytest.fixture(scope="module")
def lab(small: Lens, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = open_small(tmp_path_factory.mktemp("lab") / "probing", small, shared_data)
    for name in STUDIES:
        STUDIES[name](made)
    made.run.finish()  # and others may open it
    return made


def test_metrics_have_the_promised_keys(lab: Lab) -> None:
    metrics = json.loads((lab.run.path / "metrics.json").read_text())
    rows = {row["set"]: row for row in metrics["evaluation"]}
    assert {"humaneval", "math500", "cnndm", "mtbench", "all"} <= set(rows)
    assert all(set(row) >= KEYS for row in rows.values())
    assert {row["corpus"] for row in metrics["corpora"]} == {
        "copy_diversity",
        "natural_text",
        "constructed_copy",
    }
    assert {row["offset"] for row in metrics["offsets"]} == {0, 1, 2}
    assert {row["control"] for row in metrics["controls"]} >= {"real", "random-weights model"}
    assert len(metrics["families"]) > 1
    assert 0 <= metrics["leakage_auroc"] <= 1
    assert metrics["leakage_seeds"] >= 5


def test_all_is_the_benchmarks_together_and_nothing_else(lab: Lab) -> None:
    table = lab.run.table("evaluation")
    rows = table[table["loops"] == "with"].set_index("set")
    four = ["humaneval", "math500", "cnndm", "mtbench"]
    assert rows.loc["all", "n_tokens"] == rows.loc[four, "n_tokens"].sum()
    assert rows.loc["all", "n_match"] == rows.loc[four, "n_match"].sum()
    for name in four:
        tokens = lab.evaluation[name].tokens
        assert rows.loc[name, "loop_share"] == pytest.approx(tokens["in_loop"].mean())
        assert (lab.evaluation[name].part == "test").all()


def test_no_prompt_is_in_two_parts_of_sweep_and_whole(lab: Lab) -> None:
    seen: dict[str, str] = {}
    for data in (lab.sweep_set, lab.full_set):
        for prompt, part in zip(data.groups, data.part, strict=True):
            assert seen.setdefault(prompt, part) == part
    assert set(seen.values()) == {"train", "valid", "test"}


def test_probes_are_chosen_on_validation_and_saved_as_they_are(lab: Lab) -> None:
    table = lab.selection.table
    best = table.loc[table["valid_auroc_given_match"].idxmax()]
    served, label = lab.served, lab.label_probe
    assert (served.site, served.offset, served.target) == tuple(best[["site", "offset", "target"]])
    paper = table[(table["target"] == "copied") & (table["offset"] == 2)]
    assert label.site == paper.loc[paper["valid_auroc"].idxmax(), "site"]
    for chosen, folder in ((served, "probe"), (label, "label-probe")):
        probe = CopyProbe.load(lab.run.path / folder, lab.lens)
        assert (probe.site, probe.label_offset) == (chosen.site, chosen.offset)
        assert probe.tau == pytest.approx(chosen.fitted.tau)
        assert probe.metrics["target"] == chosen.target
        rows = lab.full_set.rows("test")[:50]
        X = lab.full_set.activations(probe.site, rows, lag=probe.label_offset)
        np.testing.assert_allclose(
            probe.score(torch.from_numpy(X)).numpy(), chosen.fitted.probe.score(X), atol=1e-5
        )


def test_a_second_start_computes_nothing(
    lab: Lab, small: Lens, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this was computed already")

    again = open_small(lab.run.path, small, shared_data)
    monkeypatch.setattr(small.model, "generate", refuse)
    monkeypatch.setattr(small, "forward", refuse)
    for name in ("layers", "evaluation", "offsets", "corpora", "tries"):
        STUDIES[name](again)
    pd.testing.assert_frame_equal(again.layers.table, lab.layers.table)


def test_figures_are_written_with_their_data(lab: Lab) -> None:
    written = write_probing_figures(lab.run)
    assert {path.stem for path in written} == set(probing_figures(0.5))
    for path in written:
        assert path.with_suffix(".csv").is_file()
        assert "plotly.min.js" in path.read_text()


def test_timings_compare_like_with_like(lab: Lab) -> None:
    table = sweep_against_sklearn(
        lab.sweep_set, list(lab.sweep_set.store.sites[:3]), C=(1e-3, 1e-2), progress=silent
    )
    assert (table["cosine"] > 0.99).all()
    assert table["auroc_difference"].max() < 3e-3
    assert (table[["switchsd_s", "sklearn_s"]] > 0).all().all()
    shares = capture_against_forward(
        lab.lens, lab.copy_diversity, lab.served.site, repeats=2, texts=8, progress=silent
    )
    assert (shares[["capture_tokens_per_s", "forward_tokens_per_s"]] > 0).all().all()
