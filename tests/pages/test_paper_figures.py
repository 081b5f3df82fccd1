"""Figures and tables of a paper: where they come from, what they draw, and what is written."""

from __future__ import annotations

import json
import re
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from demo_run import SITE, TAU, make_run
from switchsd import SwitchSDError
from switchsd.analysis.bench.tables import table1, table3
from switchsd.analysis.figures.style import figure
from switchsd.analysis.paper import finders as source
from switchsd.analysis.paper import static_images
from switchsd.analysis.paper.figures import collect, items, write_figures
from switchsd.analysis.paper.finders import setting_of
from switchsd.analysis.paper.font import WEIGHTS, font_faces, font_file
from switchsd.analysis.paper.static_images import find_chrome, write_images
from switchsd.analysis.paper.style import COLUMN, paper
from switchsd.analysis.paper.tables import by_set, lookahead, text_table, throughput
from switchsd.runs import Run
from tiny_traces import made_up, written

REPO = Path(__file__).resolve().parents[2]
NEEDS_CHROME = pytest.mark.skipif(find_chrome() is None, reason="no Chrome is installed")


def words(_: str) -> Any:
    """A tokenizer that names ids."""

    class Words:
        def decode(self, ids: list[int]) -> str:
            return " ".join(f"w{number}" for number in ids)

    return Words()


def bench_rows() -> pd.DataFrame:
    """Two policies on two sets, as a benchmark has them."""
    rows = [
        {
            "set": name,
            "policy": policy,
            "draft": "eagle3",
            "source": "live",
            "n_prompts": 20,
            "tokens_per_s": 10.0 * speed,
            "speedup": speed,
            "speedup_low": speed - 0.1,
            "speedup_high": speed + 0.1,
            "copy_share": 0.25,
            "mean_accepted_copy": 5.5,
            "neural_share": np.nan,
            "mean_accepted_neural": np.nan,
        }
        for name, policy, speed in (
            ("humaneval", "vanilla", 1.0),
            ("humaneval", "switchsd", 1.5),
            ("math500", "vanilla", 1.0),
            ("math500", "switchsd", 1.25),
        )
    ]
    table = pd.DataFrame(rows)
    return table.assign(**{f"{name}_without_loops": table[name] for name in table.columns[5:]})


def bench_run(folder: Path) -> Run:
    run = Run.start(folder / "bench", command="bench", config={})
    run.describe(model={"name": "m", "fingerprint": "f"}, dtype="bfloat16")
    gammas = pd.DataFrame(
        {
            "draft": ["eagle3"], "set": ["all"],
            "alone_gamma": [7], "alone_speedup": [1.6], "inside_gamma": [5],
            "inside_speedup": [1.9], "alone_gamma_without_loops": [6],
            "alone_speedup_without_loops": [1.4], "inside_gamma_without_loops": [4],
            "inside_speedup_without_loops": [1.5],
        }
    )  # fmt: skip
    run.write_table("table1", table1(bench_rows(), "m"))
    run.write_table("table3", table3(gammas, "m"))
    run.finish()
    return run


def demo(folder: Path) -> Run:
    run = make_run(folder)
    run.describe(model={"name": "m", "fingerprint": "f"}, dtype="float32")
    return run


def trace_run(folder: Path) -> Run:
    run = written(folder / "trace", made_up(prompts=4, tokens=60, vocab=3))
    run.describe(model={"name": "m", "fingerprint": "f"}, dtype="float32")
    run.finish()
    return run


# ---- style ---------------------------------------------------------------------------------


def test_paper_changes_sizes_and_no_data() -> None:
    drawn = figure("x", "y")
    drawn.add_scatter(x=[1, 2], y=[3, 4], line={"width": 2}, marker={"size": 10})
    drawn.add_bar(x=[1, 2], y=[3, 4])
    drawn.add_vline(x=1, line={"width": 2})
    made = paper(drawn, width=COLUMN, height=200, scale=2.0)
    assert (made.layout.width, made.layout.height) == (2 * COLUMN, 400)
    assert [list(trace.y) for trace in made.data] == [[3, 4], [3, 4]]
    assert made.data[0].marker.size == pytest.approx(12)
    small = paper(drawn, width=COLUMN, height=200)
    assert small.data[0].marker.size == pytest.approx(6)
    assert small.layout.shapes[0].line.width == pytest.approx(1.2)
    dashed = figure("x", "y")
    dashed.add_scatter(x=[1], y=[2], line={"dash": "dash"})
    assert paper(dashed, width=COLUMN, height=200).data[0].line.dash == "4px,2.5px"
    hatched = figure("x", "y")
    hatched.add_bar(x=[1], y=[2], marker={"color": "#0072B2", "pattern": {"shape": "/"}})
    bar = paper(hatched, width=COLUMN, height=200).data[0]
    assert not bar.marker.pattern.shape  # Chrome would write a picture
    assert (bar.marker.color, bar.marker.line.color) == ("#b2d5e8", "#0072B2")
    assert drawn.data[0].marker.size == 10  # the house's own figure stays as it is
    assert drawn.layout.width is None


@pytest.mark.long
def test_the_font_is_cut_to_plain_truetype() -> None:
    from base64 import b64decode
    from io import BytesIO

    from fontTools.ttLib import TTFont

    assert font_file() is not None
    fonts = re.findall(r'base64,([^"]+)"', font_faces())
    for weight, data in zip(WEIGHTS, fonts, strict=True):
        font = TTFont(BytesIO(b64decode(data)))
        assert "glyf" in font
        assert "fvar" not in font  # no variable font, which would be Type 3 in a PDF
        assert font["OS/2"].usWeightClass == weight
        assert {ord("τ"), ord("γ"), ord("×"), ord("–"), ord("a")} <= set(font.getBestCmap())
    assert len(font_faces()) < 400_000


# ---- sources -------------------------------------------------------------------------------


def test_a_demo_gives_figures_3_5_and_6(tmp_path: Path) -> None:
    run = demo(tmp_path)
    made = collect([run], items(words))
    assert list(made) == ["figure3", "figure5", "figure6-tau", "figure6-roc"]
    for each in made.values():
        assert "m, float32" in each.caption
        assert "n = " in each.caption
        assert "interval" in each.caption

    yields = run.table("copy_yield")
    bars = {bar.name[:9]: bar for bar in made["figure3"].figure.data}
    on = yields["probe_on"].astype(bool)
    shares = yields.loc[on, "accepted"].value_counts(normalize=True)
    drawn = dict(zip(bars["probe on "].x, bars["probe on "].y, strict=True))
    assert {x: y for x, y in drawn.items() if y} == pytest.approx(shares.to_dict())
    assert f"probe on n = {on.sum():,}" in made["figure3"].caption
    mean = yields.loc[on, "accepted"].mean()
    assert f"mean accepted {mean:.2f}" in made["figure3"].caption

    sweep = made["figure6-tau"].table  # computed from the scores
    test = run.table("probe_test")
    at = sweep[np.isclose(sweep["tau"], 0.5)].iloc[0]
    says, label = test["score"] >= 0.5, test["label"].astype(bool)
    assert at["precision"] == pytest.approx((says & label).sum() / says.sum())
    star = made["figure5"].figure.data[-1]
    assert (star.name, list(star.x)) == ("chosen", [3])
    assert f"starred: {SITE}" in made["figure5"].caption
    lines = made["figure6-tau"].figure
    assert list(lines.data[0].y) == sweep["f1"].tolist()
    assert lines.layout.shapes[0].x0 == TAU
    assert "AUROC 0.917 (0.894 to 0.936)" in made["figure6-roc"].caption


def test_a_trace_gives_figures_2_and_3_and_is_preferred(tmp_path: Path) -> None:
    trace = trace_run(tmp_path)
    made = collect([demo(tmp_path), trace], items(words))
    assert made["figure3"].run == trace.path
    shares = made["figure3"].table
    assert {"counted", "path", "state", "accepted", "share"} <= set(shares)
    examples = made["figure2"].table
    drawn = made["figure2"].figure
    assert list(drawn.data[0].cells.values[1]) == examples["match_length"].tolist()
    assert f"n = {len(examples)} examples" in made["figure2"].caption


def test_corpora_and_layers_of_the_study(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "p", command="probe study", config={"sweep_prompts": 14})
    run.describe(model={"name": "m", "fingerprint": "f"}, dtype="bfloat16")
    counts = {"true_positive": 6, "false_positive": 1, "false_negative": 2, "true_negative": 3}
    row = {"f1": 0.8, "f1_low": 0.7, "f1_high": 0.9, "auroc": 0.9, "n_tokens": 1200, "n_prompts": 8}
    run.write_table(
        "corpora",
        pd.DataFrame(
            [
                {"corpus": "copy_diversity", "loops": loops, **counts, **row}
                for loops in ("with", "without")
            ]
        ),
    )
    found = source.corpora(run)
    assert found is not None
    drawn = found.figure
    assert len(drawn.data) == 1  # without loops is not drawn
    assert np.allclose(drawn.data[0].z, [[0.75, 0.25], [0.25, 0.75]])
    assert "n = 1,200 tokens of 8 MT-Bench prompts" in found.caption
    assert "F1 0.800 (0.700 to 0.900)" in found.caption
    assert source.layers(run) is None


def test_tables_of_a_benchmark(tmp_path: Path) -> None:
    run = bench_run(tmp_path)
    made = collect([run], items(words))
    assert list(made) == ["table1", "table3"]  # no SPS was raced
    shown = by_set(run.table("table1"))
    assert shown["set"].tolist() == ["humaneval", "", "math500", ""]
    assert shown["policy"].tolist() == ["vanilla", "SwitchSD"] * 2
    assert shown["speed"].iloc[3] == "1.25× (1.15–1.35)"
    assert shown["copy"].iloc[1] == "25.0 % / 5.50"
    drawn = made["table1"].figure
    assert list(drawn.data[0].cells.values[1]) == shown["policy"].tolist()
    assert "humaneval 20, math500 20" in made["table1"].caption
    best = made["table3"].figure
    cells = dict(zip(best.data[0].header.values, best.data[0].cells.values, strict=True))
    assert list(cells["<b>γ alone</b>"]) == ["7 (1.60×)"]
    assert list(cells["<b>γ in SwitchSD</b>"]) == ["5 (1.90×)"]


def test_a_table_of_text_is_as_high_as_its_rows() -> None:
    rows = pd.DataFrame({"a": ["1", "2"], "b": ["x", "y"]})
    assert text_table(rows).layout.height < text_table(pd.concat([rows] * 3)).layout.height
    with pytest.raises(SwitchSDError, match="no rows"):
        text_table(rows.head(0))


def test_runs_without_anything_give_nothing(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "empty", command="probe study", config={})
    assert collect([run], items(words)) == {}
    assert throughput(1)(run) is None
    assert lookahead(run) is None
    with pytest.raises(SwitchSDError, match="which model"):
        setting_of(run)
    with pytest.raises(SwitchSDError, match="not a run folder"):
        collect([Run(tmp_path / "none")], items(words))


def test_one_bad_run_is_told_and_the_others_are_drawn(tmp_path: Path) -> None:
    damaged = bench_run(tmp_path)
    (damaged.path / "table1.parquet").write_bytes(b"PAR1 half")
    running = make_run(tmp_path, "running", finish=False)
    empty = make_run(tmp_path, "no-sites")
    empty.describe(model={"name": "m"}, dtype="float32")
    empty.write_table("sites", empty.table("sites")[:0])
    told: list[str] = []
    runs = [damaged, running, empty, demo(tmp_path)]
    made = collect(runs, items(words), problems=told.append)
    assert list(made) == ["figure3", "figure5", "figure6-tau", "figure6-roc", "table3"]
    assert made["figure5"].run.name == "demo"
    assert "running is not complete" in told[0]
    assert [words.split(" cannot")[0] for words in told[1:]] == ["figure5", "table1"]


def test_captions_claim_no_interval_that_was_not_taken(tmp_path: Path) -> None:
    run = demo(tmp_path)
    table = run.table("copy_yield")
    run.write_table("copy_yield", table[table["prompt_id"] == table["prompt_id"].iloc[0]])
    run.update_metrics(probe={"site": "blocks.3.hook_mlp_out", "tau": 0.4})
    made = collect([run], items(words))
    assert "1 prompt, no intervals" in made["figure3"].caption
    assert "nan" not in made["figure3"].caption
    assert "no intervals" in made["figure6-roc"].caption


def test_a_studys_threshold_is_that_of_the_probe_that_is_drawn(tmp_path: Path) -> None:
    run = demo(tmp_path)
    run.update_metrics(label_probe={"site": "blocks.2.hook_resid_mid", "tau": 0.37})
    made = collect([run], items(words))
    assert made["figure6-tau"].figure.layout.shapes[0].x0 == 0.37


# ---- what is written -----------------------------------------------------------------------


def test_html_holds_everything_and_the_csv_is_what_is_drawn(tmp_path: Path) -> None:
    run = demo(tmp_path)
    catalogue = items(words)
    made = collect([run], catalogue)
    out = Run.start(tmp_path / "out", command="figures", config={})
    assert write_figures(out, made, catalogue, ["html"]) is None
    folder = out.path / "figures"
    for name in made:
        text = (folder / f"{name}.html").read_text(encoding="utf-8")
        body = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
        assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", body)
        assert "Plotly.newPlot" in text
        assert "data:font/ttf" in text
    kept = pd.read_csv(folder / "figure3.csv")
    pd.testing.assert_frame_equal(kept, run.table("copy_yield"), check_dtype=False)
    captions = (folder / "captions.md").read_text(encoding="utf-8")
    assert "**figure4** is in none of the runs; `switchsd probe study --study corpora`" in captions
    metrics = out.metrics()
    assert metrics["figures_written"] == [f"{name}.html" for name in made]
    assert metrics["missing"]["table1"] == "switchsd bench"


@NEEDS_CHROME
def test_svg_and_pdf_are_vector_with_their_fonts(tmp_path: Path) -> None:
    catalogue = items(words)
    made = collect([demo(tmp_path), bench_run(tmp_path), trace_run(tmp_path)], catalogue)
    out = Run.start(tmp_path / "out", command="figures", config={})
    assert write_figures(out, made, catalogue, ["html", "svg", "pdf"]) is None
    folder = out.path / "figures"
    for name in made:
        svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
        assert "data:font/ttf" in svg
        assert "<image" not in svg
        assert f'width="{catalogue[name].width}"' in svg
        pdf = _inflated((folder / f"{name}.pdf").read_bytes())
        assert b"/FontFile2" in pdf  # TrueType
        assert b"SourceSans" in pdf
        assert b"/Type3" not in pdf
        assert not re.search(rb"/Subtype\s*/Image", pdf)
        box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
        assert box is not None
        assert float(box[1]) == pytest.approx(0.75 * catalogue[name].width, abs=1)
    words_of = (folder / "table1.svg").read_text(encoding="utf-8")
    assert "1.25× (1.15–1.35)" in words_of  # the last row too: what does not fit is not drawn
    assert "5 (1.90×)" in (folder / "table3.svg").read_text(encoding="utf-8")
    last = made["figure2"].table["text"].iloc[-1]
    drawn = re.sub(r"<[^>]*>|\s", "", (folder / "figure2.svg").read_text(encoding="utf-8"))
    assert last.replace(" ", "") in drawn
    assert len(out.metrics()["figures_written"]) == 3 * len(made)
    Run(REPO / "runs" / "face").update_metrics(figures_written=out.metrics()["figures_written"])


def test_without_a_chrome_there_is_html_and_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-such-chrome"))
    catalogue = items(words)
    made = collect([demo(tmp_path)], catalogue)
    out = Run.start(tmp_path / "out", command="figures", config={})
    problem = write_figures(out, made, catalogue, ["pdf"])
    assert problem is not None
    assert "install chromium" in problem
    assert (out.path / "figures" / "figure3.html").is_file()
    assert (out.path / "figures" / "figure3.csv").is_file()
    assert out.metrics()["static_problem"] == problem


def test_a_chrome_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = tmp_path / "chrome"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(hangs.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER_PATH", str(hangs))
    begin = time.monotonic()
    with pytest.raises(SwitchSDError, match="HTML and CSV are written all the same"):
        write_images({"a": go.Figure()}, ["svg"], tmp_path, start_seconds=2, each_seconds=2)
    assert time.monotonic() - begin < 30


def test_a_chrome_that_ends_at_once_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/bin/false")
    with pytest.raises(SwitchSDError, match="/bin/false drew no figures"):
        write_images({"a": go.Figure()}, ["svg"], tmp_path, start_seconds=5, each_seconds=5)


def test_nothing_is_fetched_for_an_image() -> None:
    assert "http" not in re.sub(r"base64,[^\"]*", "", static_images._font_script())


def test_the_command_names_what_is_missing(tmp_path: Path, switchsd: Callable[..., Any]) -> None:
    run, out = demo(tmp_path), tmp_path / "out"
    done = switchsd(
        "figures", "--run", str(run.path), "--out", str(out), "--format", "html",
        "--only", "figure3", "--only", "table1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "table1       missing: switchsd bench" in done.stdout
    assert json.loads((out / "manifest.json").read_text())["state"] == "complete"
    assert {path.name for path in (out / "figures").iterdir()} == {
        "figure3.html", "figure3.csv", "captions.md",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--format", "png"), "unknown format 'png'"),
        (("--format", ""), "no format"),
        (("--only", "figure9"), "no figure 'figure9'"),
        (("--only", "figure4"), "probe study --study corpora"),
        (("--run", "no-such-run"), "not a run folder"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    arguments: tuple[str, ...],
    says: str,
    switchsd: Callable[..., Any],
) -> None:
    run = demo(tmp_path)
    given = arguments if "--run" in arguments else ("--run", str(run.path), *arguments)
    done = switchsd("figures", "--out", str(tmp_path / "out"), *given)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_drawn_over_itself(tmp_path: Path, switchsd: Callable[..., Any]) -> None:
    run = demo(tmp_path)
    done = switchsd("figures", "--run", str(run.path), "--out", str(run.path))
    assert done.returncode == 2
    assert "name another folder with --out" in done.stderr
    assert run.has_table("tokens")


def _inflated(data: bytes) -> bytes:
    """A PDF with its compressed streams opened."""
    parts = [data]
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S):
        try:
            parts.append(zlib.decompress(found[1]))
        except zlib.error:
            continue
    return b"".join(parts)
