"""The study's stages on a model whose copying heads are known, its report, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from planted_copy import COPY_HEAD, planted_model, planted_probe, planted_texts
from switchsd import SwitchSDError
from switchsd.analysis.causal import study as explain_study
from switchsd.analysis.causal.report import headlines, write_explain_report
from switchsd.analysis.causal.stages import STAGES, ablation_sets
from switchsd.analysis.causal.study import ExplainConfig, ExplainStudy
from switchsd.analysis.pages.run_figures import CAUSAL
from switchsd.probing.corpora.study_texts import evaluation_corpus, short_prompts
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from switchsd.progress import silent
from switchsd.runs import Run

CONFIG = ExplainConfig(
    n_prompts=12, ks=(1, 2, 99), draws=3, pairs=4, exact_units=5, steering_prompts=4,
    doses=(-4.0, 4.0), random_directions=2,
)  # fmt: skip


def open_study(path: Path, lens: Lens) -> ExplainStudy:
    run = Run.start(path, command="explain study", config={})
    run.update_metrics(model=lens.name, dtype=lens.dtype)
    study = ExplainStudy(run, lens, planted_probe(lens), CONFIG, silent)
    study.__dict__["bridge"] = wrap(lens.model, name=lens.name, backend="bridge")
    study.__dict__["texts"] = planted_texts(12)
    study.__dict__["train"] = planted_texts(14, seed=7)
    return study


@pytest.fixture(scope="module")
def lens() -> Lens:
    return planted_model(noise=0.01)


@pytest.fixture(scope="module")
def study(lens: Lens, tmp_path_factory: pytest.TempPathFactory) -> ExplainStudy:
    made = open_study(tmp_path_factory.mktemp("study") / "explain", lens)
    for make in STAGES.values():
        make(made)
    write_explain_report(made.run)
    return made


def metrics_of(study: ExplainStudy) -> dict[str, Any]:
    return json.loads((study.run.path / "metrics.json").read_text())


def test_metrics_have_the_promised_keys(study: ExplainStudy) -> None:
    metrics = metrics_of(study)
    assert {
        *("attribution_max_relative_error", "heads", "top10_overlap", "top10_overlap_chance"),
        *("rank_correlation", "ablation", "patching", "steering", "matched_study"),
    } <= set(metrics)
    assert {"layer", "head", "prefix_matching", "stripe", "copying", "copy_source_attention",
            "attribution_share"} <= set(metrics["heads"][0])  # fmt: skip
    assert len(metrics["heads"]) == 8
    for row in metrics["ablation"]:
        for name in ("probe_auroc", "accepted_copy_length", "loss_elsewhere"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    assert {"low", "high", "value"} <= set(metrics["rank_correlation"])


def test_the_planted_head_tops_every_ranking_and_its_loss_is_felt(study: ExplainStudy) -> None:
    sets = ablation_sets(study)
    assert sets["induction", 1] == [[COPY_HEAD]] == sets["attribution", 1]
    assert {k for _, k in sets} == {1, 2}  # 99 heads there are not
    rows = {(row["heads"], row["k"]): row for row in metrics_of(study)["ablation"]}
    assert rows["random", 2]["draws"] == 3
    assert rows["random_attribution", 2]["draws"] == 3  # at the headline number only
    assert ("random_attribution", 1) not in rows
    clean, gone = rows["none", 0], rows["induction", 1]
    assert gone["copy_probability"] < 0.2 < clean["copy_probability"]
    assert gone["copy_probability_against_random_high"] < 0
    assert clean["copy_probability_change"] == 0
    best = metrics_of(study)["patching"]["largest"]["copy"][0]
    assert (best["layer"], best["head"]) == COPY_HEAD


def test_rankings_do_not_look_at_evaluation_text(study: ExplainStudy) -> None:
    stamp = json.loads((study.run.path / "stages" / "ranking.json").read_text())
    table = study.ranking.table
    assert table["share"].sum() == pytest.approx(1, abs=1e-6)
    own = study.run.table("attribution")
    assert not table["separation"].equals(own["separation"])  # that one is of the evaluation texts
    means = json.loads((study.run.path / "stages" / "head_means.json").read_text())
    assert means["made_from"]["train"] == stamp["made_from"]["train"]
    assert "texts" not in means["made_from"]


def test_finished_stages_are_not_done_again(
    study: ExplainStudy, lens: Lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ExplainStudy(study.run, lens, planted_probe(lens), CONFIG, silent)
    again.__dict__.update(texts=study.texts, train=study.train)
    before = metrics_of(study)
    forwards: list[int] = []
    plain = Lens.forward

    def counted(self: Lens, ids: torch.Tensor, **options: Any) -> Any:
        if self.backend == "live":
            forwards.append(len(ids))
        return plain(self, ids, **options)

    monkeypatch.setattr(Lens, "forward", counted)
    for name in ("ablation", "patching"):
        STAGES[name](again)
    assert not forwards
    assert metrics_of(study) == before


def test_the_report_shows_every_figure_and_its_data(study: ExplainStudy) -> None:
    page = (study.run.path / "report.html").read_text()
    for name, recipe in CAUSAL.items():
        assert f'id="{name}"' in page
        assert (study.run.path / "figures" / f"{name}.html").is_file()
        data = pd.read_csv(study.run.path / "figures" / f"{name}.csv")
        assert len(data) == len(study.run.table(recipe.table))
    said = headlines(metrics_of(study))
    assert len(said) == 7
    for line in said:
        assert line in (study.run.path / "report.md").read_text()
    assert "nan" not in page.split("<main>")[1].split("<figure ")[0]


def test_seconds_outlive_a_kill_and_reading_a_finished_study_adds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(explain_study.time, "perf_counter", lambda: now[0])
    run = Run.start(tmp_path / "r", command="c", config={})
    clock = explain_study._Clock(run, 90.0, silent)
    clock("stage", 0, 3)  # and then it is killed
    assert run.metrics()["seconds"] == 10
    now[0] = 200.0
    clock = explain_study._Clock(run, 198.0, silent)
    clock.write()
    assert run.metrics()["seconds"] == 12
    run.finish()
    clock = explain_study._Clock(run, 150.0, silent)
    clock.write()
    assert run.metrics()["seconds"] == 12


def test_an_unfinished_study_has_no_headlines() -> None:
    with pytest.raises(SwitchSDError, match="not finished"):
        headlines({"kinds": []})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_prompts": 1}, "n_prompts = 1"),
        ({"draws": 0}, "draws = 0"),
        ({"ks": ()}, "number of heads"),
        ({"ks": (0,)}, "number of heads"),
    ],
)
def test_bad_sizes_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SwitchSDError, match=words):
        ExplainConfig(**changes)


def test_too_many_heads_are_named(study: ExplainStudy) -> None:
    greedy = ExplainStudy(study.run, study.lens, study.served, ExplainConfig(ks=(50,)), silent)
    greedy.__dict__.update(texts=study.texts, train=study.train)
    with pytest.raises(SwitchSDError, match="50 heads are too many"):
        ablation_sets(greedy)


def test_only_short_prompts_are_taken_from_every_benchmark(tokenizer: Any, tmp_path: Path) -> None:
    from tiny_models import tiny_model

    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "hidden_size": 16}
    lens = wrap(tiny_model("llama", **shape), tokenizer, name="tiny")
    for name, texts in (("a", ["one", "two " * 200, "three"]), ("b", ["four", "five", "six"])):
        lines = [json.dumps({"id": f"{name}{at}", "turns": [text, "again"]})
                 for at, text in enumerate(texts)]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b")]
    corpus = evaluation_corpus(
        lens, files, tmp_path / "corpus", n_prompts=5, max_prompt_tokens=60, max_new_tokens=3
    )
    assert sorted(corpus["prompt_id"]) == ["a0", "a2", "b0", "b1", "b2"]
    assert set(corpus["family"]) == {"a", "b"}
    with pytest.raises(SwitchSDError, match="at most 5 tokens"):
        short_prompts(lens, files[0], max_tokens=5)
    with pytest.raises(SwitchSDError, match="no benchmark named"):
        evaluation_corpus(lens, [], tmp_path / "none")


def test_the_command_refuses_a_wrong_benchmark_before_it_loads_anything(tmp_path: Path) -> None:
    from switchsd.analysis.causal.run import run_explain_study

    def never() -> Lens:
        raise AssertionError("the model was loaded")

    with pytest.raises(SwitchSDError, match="unknown benchmark"):
        run_explain_study(
            never, lambda lens: planted_probe(lens), tmp_path / "run",
            ExplainConfig(benchmarks=("nowhere",)), model="m", dtype="float32", device="cpu",
            progress=silent,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_bad_sizes_end_the_command_with_one_line(switchsd: Callable[..., Any]) -> None:
    done = switchsd("explain", "study", "--prompts", "1")
    assert done.returncode == 2
    assert "n_prompts = 1" in done.stderr
    assert "Traceback" not in done.stderr
