"""The report is one file that asks for nothing, and its numbers are those of the run."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from demo_run import PROBE, make_run
from switchsd.analysis.pages.demo_report import typical_prompt, write_report
from switchsd.errors import SwitchSDError
from switchsd.runs import Run

FIGURES = (
    *("layer-sweep", "site-heatmap", "roc", "accepted-by-probe-state"),
    *("accepted-by-path", "policy-speedups"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = make_run(tmp_path_factory.mktemp("runs"))
    assert write_report(made) == made.path / "report.html"
    return made


def markup(path: Path) -> str:
    """The page without what stands inside its scripts."""
    return re.sub(r"(<script[^>]*>).*?</script>", r"\1", path.read_text("utf-8"), flags=re.S)


def test_plotly_is_there_once_and_nothing_is_loaded(run: Run) -> None:
    text = (run.path / "report.html").read_text("utf-8")
    assert text.count("* plotly.js v") == 1
    page = markup(run.path / "report.html")
    assert not re.search(r"<(script|img|iframe|object|embed)[^>]*\ssrc=", page)
    assert "<link" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "http" not in page


def test_numbers_of_the_tables_and_metrics_appear(run: Run) -> None:
    page = markup(run.path / "report.html")
    for words in ("SmolLM2-135M-Instruct", "float32", "blocks.3.hook_attn_out", "0.410"):
        assert words in page
    for words in ("0.894–0.936", "F1 at τ is 0.861, above the 0.702", "0.920 ★"):
        assert words in page
    for cell in ("26.8", "1.34×", "12.3%", "4.56", "yes"):
        assert f"<td>{cell}</td>" in page
    assert "SwitchSD decoded 1.34 times as fast as vanilla" in page
    assert f"cores</dt><dd>{run.manifest()['cores']}" in page


def test_tokens_of_one_prompt_are_shown_each_once(run: Run) -> None:
    page = markup(run.path / "report.html")
    tokens = run.table("tokens")
    tokens = tokens[tokens["policy"] == "switchsd"]
    shown = tokens[tokens["prompt_id"] == typical_prompt(tokens)]
    assert page.count("data-tip=") == len(shown)


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_has_its_page_and_its_data(run: Run, name: str) -> None:
    page = markup(run.path / "figures" / f"{name}.html")
    assert re.findall(r'src="([^"]*)"', page) == ["plotly.min.js"]
    assert (run.path / "figures" / "plotly.min.js").stat().st_size > 1_000_000
    assert len(pd.read_csv(run.path / "figures" / f"{name}.csv")) > 1
    assert f'id="{name}"' in markup(run.path / "report.html")


def test_the_distribution_leaves_out_positions_without_a_candidate(run: Run) -> None:
    with_match = run.table("copy_yield").query("match_length > 0")
    data = pd.read_csv(run.path / "figures" / "accepted-by-probe-state.csv")
    assert data["on_count"].sum() == with_match["probe_on"].sum()
    assert data["on_count"].sum() + data["off_count"].sum() == len(with_match)


def test_hostile_names_and_texts_are_not_read_as_html(tmp_path: Path) -> None:
    run = make_run(tmp_path, texts=("<b>", "</script>", '"><img src=x>'), n_tokens=20)
    run.update_metrics(model="<script>alert(1)</script>")
    page = markup(write_report(run))
    assert "<b>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<script") == 1 + len(FIGURES)


def test_the_sample_is_the_middle_prompt() -> None:
    shares = {"a": ["copy"] * 3, "b": ["plain"] * 3, "c": ["copy", "plain", "plain"]}
    rows = [{"prompt_id": name, "path": path} for name, paths in shares.items() for path in paths]
    assert typical_prompt(pd.DataFrame(rows)) == "c"


def test_a_run_without_probe_or_tables_is_refused_in_words(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "demo", command="demo", config={})
    with pytest.raises(SwitchSDError, match="lacks 'model'"):
        write_report(run)
    run.update_metrics(model="m", dtype="float32", probe={**PROBE, "auroc": float("nan")})
    with pytest.raises(SwitchSDError, match="no auroc"):
        write_report(run)
    run.update_metrics(probe=PROBE)
    with pytest.raises(SwitchSDError, match=r"decoding\.parquet does not exist"):
        write_report(run)
    assert not (run.path / "report.html").exists()
