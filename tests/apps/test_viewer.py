"""The viewer's states without a browser: no run, a good one, damaged ones, hostile contents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from demo_run import SITE, TAU, make_run
from streamlit.testing.v1 import AppTest
from switchsd.apps.view.address import literal
from switchsd.apps.view.run_data import (
    DECODED,
    list_entries,
    load_decode,
    newest_complete,
    open_run,
    runs_folder,
)
from switchsd.errors import SwitchSDError
from switchsd.runs import SCHEMA, Run, write_json
from viewer_runs import make_trace

Opener = Callable[..., AppTest]
VIEWER = Path(__file__).parents[2] / "apps" / "viewer.py"
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


def panel(app: AppTest) -> dict[str, Any]:
    """What the panel was given."""
    element = app.get("bidi_component")[0].proto
    return json.loads(element.json or element.mixed.json)


def page_html(app: AppTest) -> str:
    shown = [element.proto.body for element in app.get("html")]
    if app.get("bidi_component"):
        shown += panel(app)["parts"].values()
    return "\n".join(shown)


def tokens_html(app: AppTest) -> str:
    return str(panel(app)["parts"]["text"])


def run_box(app: AppTest) -> Any:
    return next(box for box in app.sidebar.selectbox if box.label == "Run")


def assert_drawn(app: AppTest) -> None:
    """Nothing went wrong that was not foreseen: a page says in words what is wrong with a run."""
    assert not app.exception
    assert "could not be drawn" not in words(app.error)


def words(elements: Iterable[Any]) -> str:
    return "\n".join(element.value for element in elements).replace("\\", "")


def test_no_run_says_how_to_make_one(tmp_path: Path, opened: Opener) -> None:
    app = opened(tmp_path / "nothing")
    assert_drawn(app)
    assert "No run yet" in words(app.title)
    assert app.code[0].value == "make demo"
    assert str(tmp_path / "nothing") in words(app.markdown)


def test_a_good_run_shows_tokens_histogram_and_numbers(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    app = opened(tmp_path)
    assert_drawn(app)
    assert not app.error
    tokens = run.table("tokens").query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
    assert tokens_html(app).count("data-tip=") == len(tokens)
    chart = panel(app)["parts"]["lengths"]
    steps = run.table("steps").query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
    n_copy = int((steps["path"] == "copy").sum())
    assert f"copy (n = {n_copy}," in chart
    assert [metric.value for metric in app.metric] == ["26.8", "1.34×", "12.3%", "4.56", "–", "yes"]
    assert SITE in words(app.sidebar.markdown)
    assert "τ = 0.410" in page_html(app)


def test_choices_go_to_the_address_and_come_from_it(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, "older")
    make_run(tmp_path, "newer")
    app = opened(tmp_path, run="older", policy="pld", prompt="HumanEval/2")
    assert [box.value for box in app.main.selectbox] == ["pld", "HumanEval/2"]
    assert run_box(app).value == "older"
    app.main.selectbox[1].set_value("HumanEval/1").run()
    assert app.query_params["prompt"] == "HumanEval/1"
    assert app.query_params["policy"] == "pld"
    run_box(app).set_value("newer").run()
    assert app.query_params["run"] == "newer"
    assert_drawn(app)


def test_what_is_chosen_in_the_text_comes_from_the_address(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    tokens = run.table("tokens").query("policy == 'switchsd' and prompt_id == 'HumanEval/0'")
    token = tokens[tokens["source"] >= 0].iloc[0]
    app = opened(tmp_path, token=str(token["position"]), lengths="0 3", span="30 50")
    parts = panel(app)["parts"]
    assert f"copied from {token['source']}" in parts["hint"]
    assert "accepted 0, 3; tokens 30 to 50" in parts["filter"]
    assert panel(app)["chosen"] == token["position"]
    app = opened(tmp_path, token="-5", lengths="x", span="3", tau="7")
    assert_drawn(app)
    assert panel(app)["chosen"] is None


def test_a_threshold_is_replayed_from_a_trace_and_priced(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    make_trace(tmp_path, run)
    app = opened(tmp_path, run="demo")
    assert panel(app)["tau"] == TAU
    assert "as recorded" in panel(app)["parts"]["tau"]
    assert "EAGLE-3" in panel(app)["parts"]["heat"]
    moved = opened(tmp_path, run="demo", tau="0.80")
    assert_drawn(moved)
    assert not moved.error
    parts = panel(moved)["parts"]
    assert panel(moved)["tau"] == 0.8
    assert "0.80, replayed" in parts["tau"]
    assert "speed over vanilla" in parts["predicted"]
    assert parts["text"].count("wants") < tokens_html(opened(tmp_path, tau="0.1")).count("wants")
    assert "scores are of the probe" not in parts["predicted"]  # whose probe it is, it does not say
    config = {**Run(tmp_path / "trace").manifest()["config"], "probe": {"tau": 0.3, "site": "else"}}
    Run(tmp_path / "trace").describe(config=config)
    parts = panel(opened(tmp_path, run="demo", tau="0.80"))["parts"]
    assert "scores are of the probe at else (τ 0.30)" in parts["predicted"]
    assert "tau:recorded" in parts["tau"]
    other = opened(tmp_path, run="demo", policy="pld")
    assert panel(other)["tau"] is None  # τ is not that policy's


def test_without_a_trace_or_profile_the_page_says_how_to_make_one(
    tmp_path: Path, opened: Opener
) -> None:
    run = make_run(tmp_path)
    app = opened(tmp_path)
    assert panel(app)["tau"] is None
    assert any("switchsd trace" in code.value for code in app.code)
    make_trace(tmp_path, run, profile=False)
    parts = panel(opened(tmp_path, run="demo", tau="0.5"))["parts"]
    assert "switchsd profile" in parts["predicted"]
    assert "speed over vanilla" not in parts["predicted"]


def test_a_profile_of_another_dtype_prices_nothing(tmp_path: Path, opened: Opener) -> None:
    trace = make_trace(tmp_path, make_run(tmp_path))
    trace.describe(config={**trace.manifest()["config"], "dtype": "float32"})
    profile = json.loads((tmp_path / "profile.json").read_text())
    for dtype, priced in (("float32", True), ("bfloat16", False)):
        about = {**profile["about"], "dtype": dtype}
        write_json(tmp_path / "profile.json", {**profile, "about": about})
        parts = panel(opened(tmp_path, run="demo", tau="0.5"))["parts"]
        assert ("speed over vanilla" in parts["predicted"]) == priced


def test_a_trace_of_another_text_or_model_is_not_taken(tmp_path: Path, opened: Opener) -> None:
    make_trace(tmp_path, make_run(tmp_path / "other", n_tokens=90, seed=3, texts=("a", "b", "c")))
    run = make_run(tmp_path)
    assert panel(opened(tmp_path, run="demo"))["tau"] is None
    trace = make_trace(tmp_path, run, "mine")
    assert panel(opened(tmp_path, run="demo"))["tau"] == TAU
    run.describe(model={"name": "x", "fingerprint": "e" * 32})
    assert panel(opened(tmp_path, run="demo"))["tau"] is None
    assert trace.exists()


def test_a_trace_is_a_page_of_its_own(tmp_path: Path, opened: Opener) -> None:
    make_trace(tmp_path, make_run(tmp_path))
    app = opened(tmp_path, run="trace", prompt="HumanEval/2")
    assert_drawn(app)
    assert "replayed" in panel(app)["parts"]["tau"]
    (tmp_path / "trace" / "positions" / "0002.parquet").write_bytes(b"PAR1half")
    app = opened(tmp_path, run="demo", prompt="HumanEval/2", tau="0.3")
    assert_drawn(app)
    assert "is damaged" in words(app.error)


@pytest.mark.parametrize("page", ["Decode", "Acceptance", "Probe lab", "Explain", "Bench"])
def test_every_page_has_an_empty_a_good_and_a_damaged_state(
    tmp_path: Path, opened: Opener, page: str
) -> None:
    app = opened(tmp_path / "nothing", page=page)
    assert_drawn(app)
    assert "No run yet" in words(app.title)
    assert app.code[0].value.startswith(("make demo", "switchsd "))
    run = make_run(tmp_path)
    explained(tmp_path)
    app = opened(tmp_path, page=page)
    assert_drawn(app)
    assert not app.error
    assert app.get("plotly_chart") or app.get("bidi_component")
    assert app.query_params["page"] == page
    for path in (*run.path.glob("*.parquet"), *(tmp_path / "explain").glob("*.parquet")):
        path.write_bytes(path.read_bytes()[:150])
    app = opened(tmp_path, page=page)
    assert_drawn(app)
    assert "damaged" in words(app.error)


def explained(folder: Path, name: str = "explain") -> Run:
    """A run of `switchsd explain` over six tokens, of which it explains the fifth."""
    run = Run.start(folder / name, command="explain", config={})
    tokens = pd.DataFrame({"position": range(6), "id": range(6), "text": list("abcabc")})
    run.write_table(
        "tokens",
        tokens.assign(
            in_prompt=tokens["position"] < 3, copied=tokens["position"] >= 3,
            source=[-1, -1, -1, 0, 1, 2], read=-1, logit=0.2, score=0.6,
        ),
    )  # fmt: skip
    parts = [("head 0.1", "head", 0, 1, 0.3), ("MLP 0", "mlp", 0, -1, -0.1)]
    columns = ["part", "kind", "layer", "index", "value"]
    run.write_table("parts", pd.DataFrame(parts, columns=columns))
    sources = {"layer": 0, "head": 1, "source": range(5), "attention": 0.2, "value": 0.06}
    run.write_table("sources", pd.DataFrame(sources))
    run.update_metrics(token=4, read=2, logit=0.2, copy_source=1)
    run.finish()
    return run


def test_a_run_stays_chosen_while_pages_are_switched(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, "one")
    make_run(tmp_path, "two")
    explained(tmp_path)
    app = opened(tmp_path, run="one")
    for page in ("Explain", "Bench", "Decode"):
        app.sidebar.radio[0].set_value(page).run()
        assert_drawn(app)
        assert not app.warning
    assert run_box(app).value == "one"


def test_a_chosen_token_comes_with_the_command_that_explains_it(
    tmp_path: Path, opened: Opener
) -> None:
    run = make_run(tmp_path)
    (run.path / "probe").mkdir()
    run.update_metrics(probe={**run.metrics()["probe"], "label_offset": 2})
    app = opened(tmp_path, prompt="HumanEval/1", token="12")
    said = next(code.value for code in app.code if "switchsd explain" in code.value)
    assert f"--of {run.path} --prompt-id HumanEval/1 --policy switchsd --token 12" in said
    assert "--model" not in said
    traced = next(code.value for code in app.code if "switchsd trace" in code.value)
    assert traced.endswith(f"--probe {run.path / 'probe'}")
    for token in ({}, {"token": "1"}):  # none chosen; one that the probe does not answer for
        app = opened(tmp_path, prompt="HumanEval/1", **token)
        assert not any("switchsd explain" in code.value for code in app.code)
    run.describe(config={"model": "org/other", "dtype": "bfloat16"})
    app = opened(tmp_path, prompt="HumanEval/1", token="12")
    said = next(code.value for code in app.code if "switchsd explain" in code.value)
    assert said.endswith("--model org/other --dtype bfloat16")


def test_explain_begins_at_the_token_of_each_run(tmp_path: Path, opened: Opener) -> None:
    explained(tmp_path)
    other = explained(tmp_path, "other")
    other.update_metrics(token=3, read=1)
    app = opened(tmp_path, page="Explain", run="explain")
    assert app.query_params["explained"] == "4"
    run_box(app).set_value("other").run()
    assert app.query_params["explained"] == "3"
    assert not any("make another one" in info.value for info in app.info)
    linked = opened(tmp_path, page="Explain", run="explain", explained="5")
    assert linked.query_params["explained"] == "5"


def test_a_study_of_heads_is_drawn_whole(tmp_path: Path, opened: Opener) -> None:
    run = Run.start(tmp_path / "study", command="explain study", config={})
    heads = pd.DataFrame(
        {"layer": [0, 0], "head": [0, 1], "prefix_matching": [0.1, 0.9], "copying": [0.2, 0.3]}
    )
    run.write_table("head_scores", heads)
    share = {"share": [0.6, 0.4], "share_low": [0.5, 0.3], "share_high": [0.7, 0.5]}
    run.write_table("kinds", pd.DataFrame({"kind": ["head", "mlp"], **share}))
    run.write_table("head_link", heads[["layer", "head"]].assign(score=[0.1, 0.9], **share))
    run.write_table("ablation", pd.DataFrame({"heads": ["none"], "auroc": [0.7]}))
    run.finish()
    app = opened(tmp_path, page="Explain")
    assert_drawn(app)
    assert not app.error
    assert any("auroc" in frame.value for frame in app.dataframe)


def test_tables_that_no_check_foresaw_are_said_in_words(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    explained(tmp_path)
    study = Run(tmp_path / "explain")
    study.update_metrics(token=None)
    app = opened(tmp_path, page="Explain")
    assert not app.exception
    assert "could not be drawn" in words(app.error)
    run.write_table("copy_yield", run.table("copy_yield").drop(columns="prompt_id"))
    app = opened(tmp_path, page="Acceptance")
    assert_drawn(app)
    assert "copy_yield table lacks prompt_id" in words(app.error)


def test_bench_compares_two_runs(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, "one")
    two = make_run(tmp_path, "two")
    two.write_table(
        "decoding", two.table("decoding").assign(tokens_per_s=lambda t: t["tokens_per_s"] * 2)
    )
    app = opened(tmp_path, page="Bench", run="one", against="two")
    table = next(frame.value for frame in app.dataframe if "speed_ratio" in frame.value)
    assert set(table["speed_ratio"]) == {2.0}


def test_the_live_form_says_what_is_wrong_with_a_prompt(tmp_path: Path, opened: Opener) -> None:
    app = opened(tmp_path, mode="live")
    assert_drawn(app)
    app.text_area[0].set_value("   ").run()
    next(button for button in app.button if button.label == "Decode").click().run()
    assert "the prompt is empty" in words(app.error)
    assert_drawn(app)


def test_a_run_of_an_older_version_is_told_from_a_damaged_one(
    tmp_path: Path, opened: Opener
) -> None:
    run = make_run(tmp_path)
    run.describe(versions={"switchsd": "0.0.9"})
    run.write_table("steps", run.table("steps").drop(columns="match_length"))
    app = opened(tmp_path)
    assert "lacks match_length: it was made by another version of switchsd (0.0.9)" in words(
        app.error
    )


@pytest.mark.parametrize("name", ["../demo", "/etc", "..", "gone", "<b>$x$</b>"])
def test_an_address_with_no_such_run_is_said_and_stays_inside(
    tmp_path: Path, opened: Opener, name: str
) -> None:
    make_run(tmp_path / "runs")
    make_run(tmp_path)
    app = opened(tmp_path / "runs", run=name)
    assert_drawn(app)
    assert f"no run called {name}" in words(app.warning)
    assert app.query_params["run"] == "demo"


def test_hostile_texts_are_shown_and_not_read(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, texts=TEXTS, n_tokens=40)
    app = opened(tmp_path)
    page = tokens_html(app)
    assert_drawn(app)
    assert "<script" not in page_html(app)
    assert "<b>" not in page
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
        (_without_a_column, "steps table lacks accepted"),
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
    assert_drawn(app)
    assert said in words(app.error)
    run_box(app).set_value("good").run()
    assert_drawn(app)
    assert not app.error
    assert "data-tip=" in page_html(app)


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path: Path, opened: Opener) -> None:
    make_run(tmp_path, finish=False)
    app = opened(tmp_path)
    assert "is not complete" in words(app.info)
    assert "data-tip=" in page_html(app)


def test_a_policy_without_drafts_has_no_mean_and_is_shown(tmp_path: Path, opened: Opener) -> None:
    run = make_run(tmp_path)
    decoding = run.table("decoding").assign(mean_accepted_copy=[float("nan"), 1.2, 1.8, 4.56])
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
    assert_drawn(app)


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
    entries = list_entries(tmp_path, DECODED)
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


def test_a_table_that_is_a_link_out_of_the_folder_is_not_read(
    tmp_path: Path, opened: Opener
) -> None:
    other = make_run(tmp_path / "elsewhere")
    run = make_run(tmp_path / "runs")
    (run.path / "tokens.parquet").unlink()
    (run.path / "tokens.parquet").symlink_to(other.path / "tokens.parquet")
    app = opened(tmp_path / "runs")
    assert "holds a link out of" in words(app.error)


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
