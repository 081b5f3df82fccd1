"""The viewer's states without a browser: no run, a good one, damaged ones, hostile contents."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from demo_run import SITE, make_run
from streamlit.testing.v1 import AppTest
from switchsd.apps.url_state import literal
from switchsd.apps.viewer_data import (
    list_entries,
    load_decode,
    newest_complete,
    open_run,
    runs_folder,
)
from switchsd.errors import SwitchSDError
from switchsd.runs import SCHEMA, Run, write_json

Opener = Callable[..., AppTest]
VIEWER = Path(__file__).parents[1] / "apps" / "viewer.py"
TEXTS = ("<b>", "$x$", "_a_", "\t", "\n", "</span><script>alert(1)</script>", "|", "🙂")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Runs the viewer on a folder, as `streamlit run apps/viewer.py -- --runs FOLDER?…` would."""

    def open_viewer(folder: Path, **address: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", [str(VIEWER), "--runs", str(folder)])
        app = AppTest.from_file(str(VIEWER), default_timeout=30)
        for name, value in address.items():
            app.query_params[name] = value
        return app.run()

    return open_viewer


def page_html(app: AppTest) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


def words(elements: Iterable[Any]) -> str:
    return "\n".join(element.value for element in elements).replace("\\", "")


def test_no_run_says_how_to_make_one(tmp_path: Path, opened: Opener) -> None:
    app = opened(tmp_path / "nothing")
    assert not app.exception
    assert "No run yet" in words(app.title)
    assert app.code[0].value == "make demo"
    assert str(tmp_path / "nothing") in words(app.markdown)


def test_a_good_run_shows_tokens_histogram_and_numbers(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    app = opened(tmp_path)
    assert not app.exception
    assert not app.error
    tokens = run.table("tokens").query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
    assert page_html(app).count("data-tip=") == len(tokens)
    chart = app.get("plotly_chart")[0].proto.spec
    steps = run.table("steps").query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
    n_copy = int((steps["path"] == "copy").sum())
    assert f"copy (n = {n_copy}," in chart
    assert [metric.value for metric in app.metric] == ["26.8", "1.34×", "12.3%", "4.56", "yes"]
    assert SITE in words(app.sidebar.markdown)
    assert "τ = 0.410" in page_html(app)


def test_choices_go_to_the_address_and_come_from_it(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, "older")
    make_run(tmp_path, "newer")
    app = opened(tmp_path, run="older", policy="pld", prompt="HumanEval/2")
    assert [box.value for box in app.selectbox] == ["pld", "HumanEval/2", "older"]
    app.selectbox[1].set_value("HumanEval/1").run()
    assert app.query_params["prompt"] == "HumanEval/1"
    assert app.query_params["policy"] == "pld"
    app.sidebar.selectbox[0].set_value("newer").run()
    assert app.query_params["run"] == "newer"
    assert not app.exception


def test_all_prompts_counts_every_step_of_the_policy(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    app = opened(tmp_path)
    app.get("button_group")[0].set_value("all prompts").run()
    steps = run.table("steps").query("policy == 'switchsd' and path == 'copy'")
    assert f"copy (n = {len(steps)}," in app.get("plotly_chart")[0].proto.spec


@pytest.mark.parametrize("name", ["../demo", "/etc", "..", "gone", "<b>$x$</b>"])
def test_an_address_with_no_such_run_is_said_and_stays_inside(
    tmp_path: Path, opened: Opener, name: str
) -> None:
    make_run(tmp_path / "runs")
    make_run(tmp_path)
    app = opened(tmp_path / "runs", run=name)
    assert not app.exception
    assert f"no run called {name}" in words(app.warning)
    assert app.query_params["run"] == "demo"


def test_hostile_texts_are_shown_and_not_read(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, texts=TEXTS, n_tokens=40)
    app = opened(tmp_path)
    page = page_html(app)
    assert not app.exception
    assert "<script" not in page
    assert "<b>" not in page.replace('<b style="left', "")
    for shown in ("&lt;b&gt;", "$x$", "_a_", "<i>⇥</i>\t", "<i>↵</i>\n", "🙂"):
        assert f">{shown}</span>" in page


def _truncated(folder: Path) -> None:
    path = folder / "tokens.parquet"
    path.write_bytes(path.read_bytes()[:200])


def _without_a_column(folder: Path) -> None:
    path = folder / "steps.parquet"
    pd.read_parquet(path).drop(columns="accepted").to_parquet(path)


def _words_for_numbers(folder: Path) -> None:
    path = folder / "tokens.parquet"
    pd.read_parquet(path).assign(score="high").to_parquet(path)


def _numbers_for_words(folder: Path) -> None:
    path = folder / "tokens.parquet"
    pd.read_parquet(path).assign(text=7).to_parquet(path)


def _an_infinite_length(folder: Path) -> None:
    path = folder / "steps.parquet"
    pd.read_parquet(path).assign(accepted=float("inf")).to_parquet(path)


def _an_absurd_length(folder: Path) -> None:
    path = folder / "steps.parquet"
    pd.read_parquet(path).assign(accepted=10**12).to_parquet(path)


def _empty(folder: Path) -> None:
    path = folder / "tokens.parquet"
    pd.read_parquet(path).head(0).to_parquet(path)


def _half_a_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema": 1, "sta')


def _a_word_for_schema(folder: Path) -> None:
    write_json(folder / "manifest.json", {"schema": "one", "state": "complete"})


def _newer(folder: Path) -> None:
    write_json(folder / "manifest.json", {"schema": SCHEMA + 1, "state": "complete"})


def _no_metrics_object(folder: Path) -> None:
    (folder / "metrics.json").write_text("[1, 2]")


def _no_table(folder: Path) -> None:
    (folder / "decoding.parquet").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_truncated, "tokens.parquet is damaged"),
        (_without_a_column, "steps.parquet is damaged"),
        (_words_for_numbers, "its column score holds the wrong kind"),
        (_numbers_for_words, "its column text holds the wrong kind"),
        (_an_infinite_length, "its column accepted holds the wrong kind"),
        (_an_absurd_length, "accepted length of 1000000000000"),
        (_empty, "has an empty tokens table"),
        (_half_a_manifest, "manifest.json is damaged"),
        (_a_word_for_schema, "is no manifest of a run"),
        (_newer, "newer switchsd"),
        (_no_metrics_object, "metrics.json is damaged"),
        (_no_table, "has no decoding table yet"),
    ],
)
def test_a_damaged_run_is_told_in_words_and_the_app_stays_up(
    tmp_path: Path, opened: Opener, spoil: Callable[[Path], None], said: str
) -> None:
    make_run(tmp_path, "good")
    broken = make_run(tmp_path, "broken")
    spoil(broken.path)
    app = opened(tmp_path, run="broken")
    assert not app.exception
    assert said in words(app.error)
    app.sidebar.selectbox[0].set_value("good").run()
    assert not app.exception
    assert not app.error
    assert "data-tip=" in page_html(app)


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, finish=False)
    app = opened(tmp_path)
    assert "is not complete" in words(app.info)
    assert "data-tip=" in page_html(app)


def test_a_policy_without_drafts_has_no_mean_and_is_shown(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    decoding = run.table("decoding").assign(mean_accepted=[float("nan"), 1.2, 1.8, 4.56])
    run.write_table("decoding", decoding)
    app = opened(tmp_path, policy="vanilla")
    assert not app.error
    assert app.metric[3].value == "–"


def test_a_run_that_changed_is_read_again(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    app = opened(tmp_path)
    run.write_table("decoding", run.table("decoding").assign(speedup=2.5))
    assert app.run().metric[1].value == "2.50×"


def test_a_wrong_argument_is_told_in_words(
    tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(VIEWER), "--rnus", str(tmp_path)])
    app = AppTest.from_file(str(VIEWER), default_timeout=30).run()
    assert "unknown argument '--rnus'" in words(app.error)
    assert not app.exception


def test_the_folder_comes_from_argument_then_environment_then_here() -> None:
    assert runs_folder(["--runs", "a"], {"SWITCHSD_RUNS": "b"}) == Path("a")
    assert runs_folder([], {"SWITCHSD_RUNS": "b"}) == Path("b")
    assert runs_folder([], {}) == Path("runs")
    with pytest.raises(SwitchSDError, match="--runs FOLDER"):
        runs_folder(["--runs"], {})


def test_the_newest_complete_run_is_opened_first(tmp_path: Path) -> None:
    for age, name in enumerate(("running", "complete", "old")):
        run = make_run(tmp_path, name, finish=name != "running")
        stamp = time.time() - 100 * age
        os.utime(run.path / "manifest.json", (stamp, stamp))
    Run.start(tmp_path / "newest", command="microbench", config={}).finish()  # no tokens to show
    entries = list_entries(tmp_path)
    assert [entry.name for entry in entries] == ["running", "complete", "old"]
    assert newest_complete(entries) == "complete"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "../demo", "a\\b", "x\0"])
def test_only_plain_names_are_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(SwitchSDError, match="not the name of a run"):
        open_run(tmp_path, name)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere")
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "demo", target_is_directory=True)
    with pytest.raises(SwitchSDError, match="leads out"):
        open_run(folder, "link")
    assert list_entries(folder)[0].state == "damaged"


def test_selection_is_one_policy_on_one_prompt_or_all(tmp_path: Path) -> None:
    data = load_decode(make_run(tmp_path))
    assert data.policies() == ["switchsd", "vanilla", "pld", "copyspec"]
    tokens, steps = data.selection("pld", "HumanEval/1")
    assert set(tokens["policy"]) == set(steps["policy"]) == {"pld"}
    assert set(tokens["prompt_id"]) == {"HumanEval/1"}
    assert data.selection("pld")[1]["prompt_id"].nunique() == 3


def test_literal_leaves_nothing_for_markdown_to_read() -> None:
    assert literal("a_b $x$ <i>") == r"a\_b \$x\$ \<i\>"
    assert literal("é 1\n2") == "é 1 2"


def test_the_viewer_imports_no_model_library(tmp_path: Path) -> None:
    """Measured in a fresh interpreter: this one has loaded whatever the other tests needed."""
    make_run(tmp_path)
    script = (
        "import sys; from streamlit.testing.v1 import AppTest\n"
        f"sys.argv = ['viewer.py', '--runs', {str(tmp_path)!r}]\n"
        f"app = AppTest.from_file({str(VIEWER)!r}, default_timeout=30).run()\n"
        "assert not app.exception and app.metric, app\n"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'sklearn'} & set(sys.modules)\n"
        "print('loaded:', sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().endswith("loaded: []"), done.stdout
