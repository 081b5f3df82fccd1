"""Claims: how each is judged, from steps counted by hand, traces, and runs that are missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from switchsd import SwitchSDError
from switchsd.analysis.paper.claim_steps import (
    claimed_steps,
    ratio_of_sums,
    speed_over,
)
from switchsd.analysis.paper.claims import (
    DIFFERS,
    HOLDS,
    UNMEASURED,
    UNTESTABLE,
    Question,
    claims_table,
    shown_claims,
)
from switchsd.analysis.paper.claims_decoding import Measured, decoding_claims
from switchsd.analysis.paper.claims_probing import probing_claims
from switchsd.analysis.paper.claims_run import write_claims
from switchsd.analysis.paper.claims_traces import best_gamma_shift, trace_claims
from switchsd.analysis.replay.acceptance import both_paths
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.apps.commands.paper import claims_command
from switchsd.intervals import Estimate
from switchsd.runs import Run
from tiny_traces import made_up, profile_for
from typer.testing import CliRunner

PROFILE = profile_for()


def steps_table(sets: tuple[str, ...] = ("humaneval", "math500", "cnndm")) -> pd.DataFrame:
    """Four prompts of each set. SwitchSD's copies take 4 or 6, CopySpec's 0, 0 or 3."""
    rows = []
    for name in sets:
        for number in range(4):
            prompt = f"{name}/{number}"
            for suffix in ("", "+sps"):
                rows += [
                    (name, prompt, "copyspec" + suffix, "copy", 0, 1, 10.0),
                    (name, prompt, "copyspec" + suffix, "copy", 3 * (number % 2), 4, 10.0),
                    (name, prompt, "copyspec" + suffix, "copy", 0, 1, 10.0),
                    (name, prompt, "switchsd" + suffix, "copy", 4 + 2 * (number % 2), 7, 10.0),
                    (name, prompt, "switchsd" + suffix, "neural", 1, 2, 10.0),
                ]
            rows += [
                (name, prompt, "eagle3", "neural", 2, 3, 10.0),
                (name, prompt, "sps", "neural", 2, 3, 8.0),
                (name, prompt, "vanilla", "plain", 0, 1, 10.0),
                (name, prompt, "pld", "copy", 0, 1, 12.0),
                (name, prompt, "bandit-ucb", "copy", 1, 2, 10.0),
            ]
    columns = ["set", "prompt_id", "policy", "path", "accepted", "emitted", "ms"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(position=5, loop=10**6)


def by_words(claims: list, words: str):
    found = [claim for claim in claims if words in claim.claim]
    assert len(found) == 1, [claim.claim for claim in claims]
    return found[0]


def test_a_claim_holds_where_its_interval_does() -> None:
    asked = Question("c", "§", 1.15, "do", above=1.0)
    assert asked.answer(Estimate(1.2, 1.1, 1.3)).verdict == HOLDS
    over = asked.answer(Estimate(1.1, 0.9, 1.2), "live")
    assert over.verdict == DIFFERS
    assert over.note.startswith("live; the estimate is on the claim's side")
    assert asked.answer(Estimate(0.8, 0.7, 0.9)).note == ""
    assert asked.answer(Estimate(1.2, np.nan, np.nan)).verdict == HOLDS
    assert asked.answer(Estimate(1.2, np.nan, np.nan)).low is None
    missing = asked.answer(None)
    assert (missing.verdict, missing.ours, missing.command) == (UNMEASURED, None, "do")
    assert asked.answer(Estimate(np.nan, np.nan, np.nan)).verdict == UNMEASURED
    endless = asked.answer(Estimate(np.inf, 3.0, np.inf))
    assert (endless.verdict, endless.ours, endless.low) == (HOLDS, None, 3.0)
    assert "infinite" in endless.note
    assert asked.answer(Estimate(np.inf, 0.5, np.inf)).verdict == DIFFERS
    lower = Question("c", "§", -2.0, "do", below=0.0)
    assert [lower.answer(Estimate(v, v, v)).verdict for v in (-1.0, 0.0)] == [HOLDS, DIFFERS]
    reach = Question("c", "§", 2.0, "do", reach=2.0)
    assert reach.answer(Estimate(1.9, 1.7, 2.1)).verdict == HOLDS
    assert reach.answer(Estimate(1.7, 1.6, 1.9)).verdict == DIFFERS


def test_figures_are_of_sums_and_intervals_of_prompts() -> None:
    steps = steps_table(("math500",))
    copies = steps[steps["path"] == "copy"]

    def ones(rows: pd.DataFrame) -> pd.Series:
        return pd.Series(1, index=rows.index)

    vain = ratio_of_sums(copies, lambda r: r["accepted"] == 0, ones, ["copyspec"])
    assert vain is not None
    assert vain.value == pytest.approx(10 / 12)  # prompts 0 and 2: three of three; else two
    assert vain.low == pytest.approx(2 / 3)
    assert vain.high == pytest.approx(1.0)
    longer = ratio_of_sums(
        copies, lambda r: r["accepted"], ones, ["switchsd", "copyspec"], np.subtract
    )
    assert longer is not None
    assert longer.value == pytest.approx(5 - 0.5)
    assert ratio_of_sums(copies, lambda r: r["accepted"], ones, ["nobody"]) is None
    speed = speed_over(steps, "switchsd", "eagle3")
    assert speed is not None
    assert speed.value == pytest.approx((9 / 20) / (3 / 10))
    assert speed_over(steps, "switchsd", "nobody") is None
    assert speed_over(steps.drop(columns="ms"), "switchsd", "eagle3") is None


def test_claims_about_decoding() -> None:
    live = Measured(steps_table(), "live", {1.0: steps_table(("humaneval",))})
    claims = decoding_claims(live, live)
    vain = by_words(claims, "over half of CopySpec's copies")
    assert (vain.verdict, vain.ours) == (HOLDS, pytest.approx(10 / 12))
    assert "without loops 0.83" in vain.note
    longer = by_words(claims, "longer accepted copies than CopySpec (EAGLE-3, humaneval")
    assert (longer.verdict, longer.ours) == (HOLDS, pytest.approx(4.5))
    assert longer.paper == pytest.approx(5.88 - 1.83)
    fewer = by_words(claims, "fewer of its steps than CopySpec (SPS, math500")
    assert (fewer.verdict, fewer.ours) == (HOLDS, pytest.approx(0.5))
    faster = by_words(claims, "faster than EAGLE-3 on every set")
    assert (faster.verdict, faster.ours) == (HOLDS, pytest.approx(1.5))
    assert "without loops 1.50" in faster.note
    assert by_words(claims, "speedup over vanilla on humaneval").verdict == HOLDS
    bandit = by_words(claims, "BanditSpec is slower")
    assert (bandit.verdict, bandit.ours) == (HOLDS, pytest.approx(0.2 / 0.45))
    assert by_words(claims, "holds with SPS").verdict == HOLDS
    hot = by_words(claims, "high temperature")
    assert (hot.verdict, hot.ours) == (HOLDS, pytest.approx(1.5))
    assert "temperature 1" in hot.note


def test_the_worst_set_decides() -> None:
    steps = steps_table()
    slow = (steps["set"] == "cnndm") & (steps["policy"] == "switchsd")
    steps.loc[slow, "ms"] *= 3
    claims = decoding_claims(None, Measured(steps, "live", {}))
    faster = by_words(claims, "faster than EAGLE-3 on every set")
    assert (faster.verdict, faster.ours) == (DIFFERS, pytest.approx(0.5))
    assert faster.note.startswith("cnndm, switchsd over eagle3")
    best = by_words(claims, "up to 15 % faster")
    assert (best.verdict, best.ours) == (HOLDS, pytest.approx(1.5))
    assert by_words(claims, "over half of CopySpec's").verdict == UNMEASURED
    assert by_words(claims, "high temperature").verdict == UNMEASURED
    two = decoding_claims(None, Measured(steps[steps["set"] != "cnndm"], "live", {}))
    assert by_words(two, "faster than EAGLE-3 on every set").verdict == UNMEASURED


def benchmark_trace() -> CounterfactualTrace:
    trace = made_up(prompts=6, tokens=60, vocab=12)
    names = ["humaneval", "math500", "cnndm"] * 2
    accepted = [c[0] if len(c) else 0 for c in trace.positions["copy_n3"]]
    score = np.where(np.array(accepted) >= 3, 0.9, 0.1).astype(np.float32)
    score[::7] = 0.9  # wrong now and then
    return replace(
        trace,
        prompts=trace.prompts.assign(set=names),
        positions=trace.positions.assign(score=score),
    )


def test_claims_about_both_paths_and_lookahead() -> None:
    trace = benchmark_trace()
    claims = trace_claims(trace, PROFILE)
    longer = by_words(claims, "copies are longer with the probe on")
    paths = both_paths(trace, Setting("switchsd", D=20))
    mine = paths[(paths["set"] == "humaneval") & paths["step"] & paths["whole"]]
    means = mine.groupby("state")["copy"].mean()
    assert longer.ours == pytest.approx(means["on"] - means["off"])
    counts = mine["state"].value_counts()
    assert f"of {counts['on']}; off" in longer.note
    shift = by_words(claims, "best lookahead is lower")
    best = {
        name: int(
            np.argmin(
                [
                    replay(trace, Setting(name, draft="eagle3", gamma=g), profile=PROFILE).sums()[
                        "ms"
                    ]
                    for g in range(1, 11)
                ]
            )
        )
        for name in ("switchsd", "eagle3")
    }
    assert shift.ours == best["switchsd"] - best["eagle3"]
    assert best_gamma_shift(trace, PROFILE).value == shift.ours
    assert [c.verdict for c in trace_claims(None, None)] == [UNMEASURED] * 3
    assert trace_claims(trace, None)[2].verdict == UNMEASURED
    blind = replace(trace, positions=trace.positions.assign(score=np.float32(np.nan)))
    assert [c.verdict for c in trace_claims(blind, PROFILE)] == [UNMEASURED] * 3


def probing_run(path: Path) -> Run:
    sites = [
        {"site": f"blocks.{layer}.{stream}", "layer": layer, "stream": stream, "auroc": auroc}
        for stream, aurocs in {
            "hook_attn_out": (0.6, 0.8, 0.9, 0.7),
            "hook_mlp_out": (0.5, 0.7, 0.8, 0.75),
            "hook_resid_mid": (0.6, 0.9, 0.95, 0.9),
            "hook_resid_post": (0.5, 0.8, 0.9, 0.8),
        }.items()
        for layer, auroc in enumerate(aurocs)
    ]
    corpora = [
        {"corpus": name, "f1": f1, "f1_low": f1 - 0.02, "f1_high": f1 + 0.02, "f1_always_copy": 0.6}
        for name, f1 in (("constructed_copy", 0.5), ("natural_text", 0.6), ("copy_diversity", 0.63))
    ]
    run = Run.start(path, command="probe study", config={})
    run.update_metrics(
        sites=sites,
        corpora=corpora,
        label_probe={"tau": 0.44},
        evaluation=[
            {"set": "all", "auroc": 0.9, "auroc_low": 0.89, "auroc_high": 0.91, "n_tokens": 1000}
        ],
    )
    run.finish()
    return run


def test_claims_about_probes(tmp_path: Path) -> None:
    claims = probing_claims(probing_run(tmp_path / "p"))
    assert by_words(claims, "attention above MLP at every layer (sub").ours == pytest.approx(0.75)
    assert by_words(claims, "attention above MLP at every layer (res").verdict == HOLDS
    assert by_words(claims, "peaks at mid-depth").ours == pytest.approx(2 / 4)
    assert by_words(claims, "declines in the final").ours == pytest.approx(-0.05)
    first = by_words(claims, "natural text over ConstructedCopy")
    assert (first.verdict, first.ours) == (HOLDS, pytest.approx(0.1))
    second = by_words(claims, "CopyDiversity over natural text")
    assert (second.verdict, second.low) == (HOLDS, pytest.approx(0.03 - 0.02 * 2**0.5))
    assert by_words(claims, "AUC of the probe above 0.99 (bench").verdict == DIFFERS
    assert by_words(claims, "AUC of the probe above 0.99 (Copy").verdict == UNMEASURED
    assert by_words(claims, "threshold near 0.4").verdict == HOLDS
    assert {claim.verdict for claim in probing_claims(None)} == {UNMEASURED}
    Run.start(tmp_path / "d", command="demo", config={}).finish()
    with pytest.raises(SwitchSDError, match="not of probe study"):
        probing_claims(Run(tmp_path / "d"))


class Letters:
    """A tokenizer of single letters."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + token) for token in ids)


def test_claims_are_written_beside_what_is_there(tmp_path: Path) -> None:
    bench = Run.start(tmp_path / "measure", command="bench", config={})
    bench.write_table("steps", steps_table())
    bench.update_metrics(table1=[{"kept": 1}])
    bench.finish()
    table = write_claims(
        bench.path, probing=probing_run(tmp_path / "p").path, bench=bench.path,
        trace=benchmark_trace(), profile=PROFILE, tokenizer=Letters(),
    )  # fmt: skip
    metrics = json.loads((bench.path / "metrics.json").read_text())
    assert metrics["table1"] == [{"kept": 1}]
    keys = {"claim", "paper", "ours", "low", "high", "verdict", "command"}
    assert all(keys <= set(row) for row in metrics["claims"])
    assert len(metrics["claims"]) == len(table) > 25
    assert {HOLDS, DIFFERS, UNTESTABLE, UNMEASURED} == set(table["verdict"])
    assert "live" in by_row(table, "faster than EAGLE-3 on every set")["note"]
    assert "replayed" in by_row(table, "over half of CopySpec's")["note"]
    assert (table.loc[table["verdict"] == UNMEASURED, "command"] != "").all()
    assert Run(bench.path).manifest()["command"] == "bench"
    for name in ("figure2", "figure2-attempts", "figure3"):
        assert Run(bench.path).has_table(name)
        assert (bench.path / "figures" / f"{name}.html").is_file()
    shown = shown_claims(table)
    assert len(shown) == len(table)
    text = (bench.path / "claims.md").read_text()
    assert text.count("\n") == len(table) + 2
    assert "not measured yet" in (bench.path / "claims.html").read_text()


def by_row(table: pd.DataFrame, words: str) -> pd.Series:
    return table[table["claim"].str.contains(words, regex=False)].iloc[0]


def test_speeds_are_replayed_where_there_is_no_benchmark(tmp_path: Path) -> None:
    table = write_claims(tmp_path / "c", trace=benchmark_trace(), profile=PROFILE)
    assert "replayed" in by_row(table, "faster than EAGLE-3 on every set")["note"]
    assert not (tmp_path / "c" / "figures" / "figure2.html").exists()  # no tokenizer
    steps = claimed_steps(benchmark_trace(), None)
    assert "ms" not in steps
    assert {"vanilla", "copyspec", "switchsd+sps", "sps"} <= set(steps["policy"])
    without = write_claims(tmp_path / "d", trace=benchmark_trace())
    assert by_row(without, "faster than EAGLE-3 on every set")["verdict"] == UNMEASURED
    assert by_row(without, "over half of CopySpec's")["verdict"] != UNMEASURED


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("claims")(claims_command)
    nowhere = ["--probing", str(tmp_path / "no"), "--trace", str(tmp_path / "no")]
    done = CliRunner().invoke(app, ["--run", str(tmp_path / "m"), *nowhere])
    assert done.exit_code == 0, done.output
    assert "switchsd probe study --all" in done.output
    assert Run(tmp_path / "m").manifest()["state"] == "complete"
    again = CliRunner().invoke(app, ["--run", str(tmp_path / "m"), *nowhere])
    assert again.exit_code == 0
    for arguments, said in (
        (["--bench", str(tmp_path / "no")], "does not exist"),
        (["--bench", str(tmp_path / "m")], "no finished run of `switchsd bench`"),
        (["--profile", str(tmp_path / "no.json")], "does not exist"),
    ):
        done = CliRunner().invoke(app, ["--run", str(tmp_path / "x"), *nowhere, *arguments])
        assert isinstance(done.exception, SwitchSDError)
        assert said in str(done.exception)
    assert claims_table([]).empty
