"""`switchsd bench` on a tiny model: runs that go on, exactness, replay against live decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from switchsd import SwitchSDError
from switchsd.analysis.bench import check as bench_check
from switchsd.analysis.bench import race as bench_race
from switchsd.analysis.bench.check import run_check
from switchsd.analysis.bench.clocks import Primed, Watched
from switchsd.analysis.bench.methods import bench_methods, labels
from switchsd.analysis.bench.race import race_text
from switchsd.analysis.bench.report import write_outcome
from switchsd.analysis.bench.run import BenchPlan, bench_outcome, run_bench
from switchsd.analysis.bench.transformers import TRANSFORMERS, references
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.traces.columns import TraceSettings
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.analysis.traces.write import run_trace
from switchsd.apps.commands.bench import bench_command
from switchsd.decoding.drafts import Drafts
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.exactness.reference import reference_ids
from switchsd.decoding.neural import TREE
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.tree_shape import TreeShape
from switchsd.probing.corpora import asked as asking
from switchsd.probing.lens import Lens
from switchsd.runs import Run, read_json, write_json
from tiny_models import policy_for, probe_for
from tiny_traces import made_up, profile_for, written
from typer.testing import CliRunner

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]


class Words:
    """As much of a tokenizer as a run needs."""

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(map(str, ids))

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(32)}


@pytest.fixture(scope="module")
def target(tiny: Callable[..., Lens]) -> Lens:
    lens = tiny("llama")
    lens.tokenizer = Words()
    return lens


@pytest.fixture(scope="module")
def drafts(target: Lens) -> Drafts:
    return Drafts(random_head(target, std=0.2), noisy_copy(target), {"eagle3": "a", "sps": "b"})


@pytest.fixture
def prompts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "some.jsonl"
    lines = [f'{{"prompt": "{n} 1 2 3 {n} 1 2 3 {n}"}}\n' for n in range(3, 7)]
    file.write_text("".join(lines))

    def words(_: Any, turns: list[str]) -> list[int]:
        return [int(word) for word in turns[0].split()]

    monkeypatch.setattr(asking, "chat_ids", words)
    return file


@pytest.mark.parametrize("name", ["copyspec", "switchsd", "sps", "eagle3", "eagle3-tree"])
def test_watching_changes_no_step_and_its_times_add_up(
    target: Lens, drafts: Drafts, name: str
) -> None:
    assert drafts.model is not None
    for sampling in (None, Sampling(temperature=0.8, seed=4)):
        plain = policy_for(name, target, drafts.model, n=1)
        settings = {"max_new_tokens": 30, "sampling": sampling}
        alone = generate(target, PROMPT, plain, **settings)
        watched = Watched.of(plain, PROMPT, target.device)
        seen = generate(target, PROMPT, watched.policy, **settings)
        assert seen.ids == alone.ids
        kept = ["position", "path", "proposed", "accepted", "emitted", "match_length"]
        steps = watched.steps(seen.trace)
        pd.testing.assert_frame_equal(steps[kept], alone.trace.steps_frame()[kept])
        parts = steps[[f"{part}_ms" for part in ("draft", "verify", "lookup", "gate", "rest")]]
        assert (parts >= 0).all(axis=None)
        assert parts.sum(axis=1).tolist() == pytest.approx(steps["ms"].tolist())
        assert steps["ms"].sum() == pytest.approx(seen.trace.decode_ms)
        assert (steps["lookup_ms"] > 0).all() == (plain.copier is not None)
        assert (watched.draft_prefill_s > 0) == (plain.neural is not None)
        assert 1e3 * watched.draft_prefill_s <= seen.trace.prefill_ms


def test_a_primed_draft_has_seen_the_prompt(target: Lens, drafts: Drafts) -> None:
    assert drafts.model is not None
    policy = policy_for("sps", target, drafts.model)
    assert policy.neural is not None
    primed = Primed(policy.neural, target.device)
    primed.prompt = PROMPT
    taken: list[int] = []
    forward = policy.neural._forward  # type: ignore[attr-defined]

    def counted(missing: list[int]) -> Any:
        taken.append(len(missing))
        return forward(missing)

    policy.neural._forward = counted  # type: ignore[attr-defined]
    primed.reset()
    primed.absorb({})
    assert taken == [len(PROMPT)]
    primed.absorb({})  # later streams are no prompt
    primed.propose(PROMPT, 3, None)
    assert taken == [len(PROMPT), 1, 1, 1]
    primed.prompt = [5]
    primed.reset()
    primed.propose([5], 1, None)  # a prompt of one token has no prefill
    assert primed.prefill_s == 0


def test_transformers_runs_beside(target: Lens, drafts: Drafts) -> None:
    methods = bench_methods(target, drafts, probe_for(target, bias=1.0), ["pld"])
    assert list(methods.raced) == ["vanilla", "pld"]
    outside = references(drafts.model)
    truth = reference_ids(target, PROMPT, 30)
    orders = []
    for start in range(3):
        race = race_text(target, PROMPT, methods.policies, outside, max_new_tokens=30, start=start)
        assert race.runs["policy"].tolist() == ["vanilla", "pld", *outside]
        assert race.runs["token_exact"].all()
        orders.append(race.steps["policy"].unique().tolist())
        for label in outside:
            steps = race.steps[race.steps["policy"] == label]
            text = race.tokens[(race.tokens["policy"] == label) & (race.tokens["step"] >= 0)]
            assert text["id"].tolist() == truth
            first = int(steps["position"].iloc[0])
            assert first + steps["emitted"].sum() == len(PROMPT) + 30
            assert steps["position"].diff().iloc[1:].tolist() == steps["emitted"].tolist()[:-1]
            assert (steps["accepted"] <= steps["proposed"]).all()
    plain = race.steps[race.steps["policy"] == TRANSFORMERS]
    assert plain["path"].unique().tolist() == ["plain"]
    assert len(plain) == 29  # and one forward of prefill
    assert race.steps[race.steps["policy"] == f"{TRANSFORMERS}-assisted"]["accepted"].sum() > 0


def test_methods_are_left_out_or_named(target: Lens, drafts: Drafts) -> None:
    found = bench_methods(target, replace(drafts, model=None), None)
    assert {"sps", "copyspec+sps", "switchsd", "switchsd+sps"} <= set(found.left_out)
    assert "draft model" in found.left_out["sps"]
    assert {"vanilla", "pld", "copyspec", "suffix", "eagle3", "bandit-ucb"} <= set(found.raced)
    whole = bench_methods(target, drafts, probe_for(target))
    assert set(whole.raced) | set(whole.left_out) == set(labels())
    assert {"switchsd", "switchsd+sps", "copyspec+sps"} <= set(whole.raced)
    assert whole.raced["switchsd+sps"].draft == "sps"
    assert whole.raced["copyspec"].policy.probe is None  # it does not pay for scores
    with pytest.raises(SwitchSDError, match="unknown policy 'fastest'"):
        bench_methods(target, drafts, None, ["fastest"])
    with pytest.raises(SwitchSDError, match="needs a probe"):
        bench_methods(target, drafts, None, ["switchsd"])


@pytest.mark.long
def test_a_run_goes_on_and_writes_every_table(
    target: Lens, drafts: Drafts, prompts_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    methods = bench_methods(target, drafts, probe_for(target, bias=1.0))
    plan = BenchPlan((str(prompts_file),), 3, 40, (0.0, 0.7), 2)
    raced: list[tuple[int, int]] = []
    race = bench_race.race_text

    def counted(lens: Lens, prompt: list[int], *args: Any, **settings: Any) -> Any:
        if settings["max_new_tokens"] == 40:
            if len(raced) == 2 and not (tmp_path / "go-on").exists():
                raise KeyboardInterrupt
            raced.append((prompt[0], settings.get("sampling") is not None))
        return race(lens, prompt, *args, **settings)

    monkeypatch.setattr(bench_race, "race_text", counted)

    def go() -> Run:
        return run_bench(
            target, drafts, probe_for(target, bias=1.0), methods, tmp_path / "run", plan
        )

    with pytest.raises(KeyboardInterrupt):
        go()
    (tmp_path / "go-on").touch()
    run = go()
    assert raced == [(3, 0), (4, 0), (5, 0), (3, 1), (4, 1)]  # no prompt twice
    folder = tmp_path / "trace"
    settings = TraceSettings(20, trees=(TREE,))
    run_trace(target, drafts, probe_for(target, bias=1.0), folder, settings,
              sets=[str(prompts_file)])  # fmt: skip
    traced = CounterfactualTrace.read(folder)
    traced.prompts["set"] = "mtbench"
    profile = profile_for(["eagle3", "sps", "tree_20_4_4"])
    write_outcome(run, trace=traced, profile=profile, tokenizer=target.tokenizer)
    bench_outcome(run)
    assert run.manifest()["state"] == "complete"
    metrics = run.metrics()
    assert metrics["exact"]
    assert metrics["divergences"] == []
    rows = {row["policy"]: row for row in metrics["rows"]}
    assert list(rows) == [*methods.raced, *references(drafts.model)]
    assert all(row["n_exact"] == row["n_prompts"] == 3 for row in rows.values())
    assert all(row["tokens_per_s"] > 0 for row in rows.values())
    assert rows["vanilla"]["speedup"] == 1
    assert rows["sps"]["draft_prefill_s"] > 0
    steps = run.table("steps")
    mine = steps[steps["policy"] == "sps"]
    assert rows["sps"]["mean_accepted_neural"] == pytest.approx(
        mine.loc[mine["proposed"] > 0, "accepted"].mean()
    )
    times = ("draft", "verify", "lookup", "gate", "rest")
    assert sum(rows["switchsd"][f"{part}_time_share"] for part in times) == pytest.approx(1)
    assert {row["temperature"] for row in metrics["temperatures"]} == {0, 0.7}
    assert {row["policy"] for row in metrics["temperatures"]} == {
        "vanilla", "eagle3", "copyspec", "switchsd",
    }  # fmt: skip
    assert {row["n_prompts"] for row in metrics["temperatures"]} == {2}
    one = pd.DataFrame(metrics["table1"])
    assert set(zip(one["set"], one["source"], strict=True)) == {
        (str(prompts_file), "live"), ("mtbench", "replay"),
    }  # fmt: skip
    assert "sps" not in set(one["policy"])
    assert {"switchsd", "sps", "copyspec"} <= {row["policy"] for row in metrics["table2"]}
    assert {row["draft"] for row in metrics["table3"]} == {"eagle3", "sps"}
    assert metrics["replay_speedup_error_bench"] is None  # by its name the trace is of another set
    assert [row["set"] for row in metrics["switchsd_over_eagle3"]] == [str(prompts_file), "mean"]
    text, page = ((run.path / f"report.{end}").read_text() for end in ("md", "html"))
    assert "Table 3" in text
    assert "transformers" in page
    with pytest.raises(SwitchSDError, match="hold replayed sets"):
        write_outcome(run)
    mine = CounterfactualTrace.read(folder)  # of 20 new tokens, where live decoding had 40
    write_outcome(run, trace=mine, profile=profile)
    assert run.metrics()["replay_speedup_error_bench"] is None
    run.describe(config={**run.manifest()["config"], "new_tokens": 20})
    write_outcome(run, trace=mine, profile=profile)
    speeds = run.table("replayed_speeds").set_index("policy")
    assert list(speeds.index) == list(methods.raced)
    assert speeds.loc["pld", "live"] == rows["pld"]["speedup"]
    both = mine.only(  # the trace has more of them
        mine.prompts["prompt_id"].isin(run.table("prompts")["prompt_id"]).to_numpy()
    )
    replayed = replay(both, Setting("pld"), profile=profile).steps()
    plain = replay(both, Setting("vanilla"), profile=profile).steps()
    assert speeds.loc["pld", "replayed"] == pytest.approx(
        plain["ms"].sum() / replayed["ms"].sum()  # the same tokens
    )
    assert run.metrics()["replay_speedup_error_bench"]["pld"] == pytest.approx(
        abs(speeds.loc["pld", "replayed"] / speeds.loc["pld", "live"] - 1)
    )
    wrong = replace(mine, settings={**mine.settings, "model": "x" * 32})
    with pytest.raises(SwitchSDError, match="another model"):
        write_outcome(run, trace=wrong, profile=profile)


def test_an_inexact_text_in_float32_fails_the_run(
    target: Lens, drafts: Drafts, prompts_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    policy = bench_race._policy

    def wrong(*args: Any) -> Any:
        race = policy(*args)
        if args[2] == "pld":
            race.tokens.loc[race.tokens.index[-2], "id"] += 1
        return race

    monkeypatch.setattr(bench_race, "_policy", wrong)
    methods = bench_methods(target, drafts, None, ["pld"])
    plan = BenchPlan((str(prompts_file),), 2, 12, ())
    run = run_bench(target, drafts, None, methods, tmp_path / "run", plan)
    write_outcome(run)
    with pytest.raises(SwitchSDError, match=r"not token-exact .* 2 texts .* pld on .* after 10"):
        bench_outcome(run)
    assert run.manifest()["state"] == "complete"
    rows = {row["policy"]: row["n_exact"] for row in run.metrics()["rows"]}
    assert (rows["vanilla"], rows["pld"]) == (2, 0)
    assert "after tokens" in (run.path / "report.md").read_text()
    run.update_metrics(dtype="bfloat16")
    bench_outcome(run)  # there it is reported, and no failure


@pytest.fixture
def traced(target: Lens, drafts: Drafts, prompts_file: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    settings = TraceSettings(40, trees=(TREE, TreeShape(6, 2, 2)))
    run_trace(target, drafts, probe_for(target, bias=1.0), folder, settings,
              sets=[str(prompts_file)], limit=3)  # fmt: skip
    return folder


def _decodes_nothing(race_prompts: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench_race, "_policy", None)
            return race_prompts(*args, **options)

    return told


@pytest.mark.long
def test_replay_equals_live_decoding(
    target: Lens, drafts: Drafts, traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = probe_for(target, bias=1.0)
    methods = bench_methods(target, drafts, probe)
    short = [Setting("switchsd", tau=t / 20) for t in range(20)]
    monkeypatch.setattr("switchsd.analysis.bench.replayed.thousand_settings", lambda _: short)
    profile = profile_for(["eagle3", "sps", "tree_20_4_4"])

    def check(folder: str, *names: str) -> dict[str, Any]:
        some = bench_methods(target, drafts, probe, names) if names else methods
        done = run_check(target, drafts, probe, some, traced, profile, tmp_path / folder)
        return done.metrics()

    metrics = check("check")
    found = metrics["replay_equals_live"]
    assert found["prompts"] == 3
    assert found["policies"] == list(methods.raced)
    assert found["disagreements"] == found["near_tie_differences"] == 0
    texts = Run(tmp_path / "check").table("texts")
    assert len(texts) == 3 * len(methods.raced)
    assert (texts["steps"] == texts["replayed_steps"]).all()
    assert texts.groupby("policy")["steps"].sum()["sps"] < texts["steps"].max() * 3
    assert set(metrics["replay_speedup_error"]) == set(methods.raced)
    assert metrics["replay_speedup_error"]["vanilla"] == 0
    assert metrics["replay_seconds_prompts"] == 3
    assert metrics["trace_cost_over_generation"] > 1
    monkeypatch.setattr(bench_check, "race_prompts", _decodes_nothing(bench_check.race_prompts))
    again = check("check")  # a finished one: only the figures are made anew
    assert again["replay_equals_live"] == found
    monkeypatch.undo()
    monkeypatch.setattr("switchsd.analysis.bench.replayed.thousand_settings", lambda _: short)
    setting = bench_check.setting_of
    monkeypatch.setattr(  # a replay of something else is noticed
        bench_check, "setting_of", lambda *about: replace(setting(*about), gamma=2)
    )
    assert check("other", "sps")["replay_equals_live"]["disagreements"] > 0


def test_a_foreign_trace_is_refused(
    target: Lens, drafts: Drafts, traced: Path, tmp_path: Path, tiny: Callable[..., Lens]
) -> None:
    probe = probe_for(target, bias=1.0)
    methods = bench_methods(target, drafts, probe, ["switchsd", "sps"])

    def check(lens: Lens, drafts: Drafts, probe: Any, profile: Any = None) -> None:
        run_check(lens, drafts, probe, methods, traced, profile, tmp_path / "run")

    with pytest.raises(SwitchSDError, match="another model"):
        check(tiny("qwen3"), drafts, probe)
    unnamed = Lens(target.name, target.model, None, "live")
    with pytest.raises(SwitchSDError, match="another tokenizer"):
        check(unnamed, drafts, probe)
    with pytest.raises(SwitchSDError, match="another sps"):
        check(target, replace(drafts, files={"eagle3": "a", "sps": "c"}), probe)
    with pytest.raises(SwitchSDError, match="another probe"):
        check(target, drafts, probe_for(target, bias=2.0))
    with pytest.raises(SwitchSDError, match="lacks draft of sps"):
        check(target, drafts, probe, profile_for(["eagle3"]))
    half = replace(profile_for(["eagle3", "sps"]), about={"dtype": "bfloat16"})
    with pytest.raises(SwitchSDError, match="measured with dtype bfloat16, live decoding runs"):
        check(target, drafts, probe, half)
    manifest = read_json(traced / "manifest.json")
    manifest["config"]["dtype"] = "bfloat16"
    write_json(traced / "manifest.json", manifest)
    with pytest.raises(SwitchSDError, match="trace with --dtype float32"):
        check(target, drafts, probe)
    manifest["config"]["sampling"]["temperature"] = 0.7
    write_json(traced / "manifest.json", manifest)
    with pytest.raises(SwitchSDError, match="was sampled"):
        check(target, drafts, probe)
    assert not (tmp_path / "run").exists()


def test_bad_prompts_are_named(
    target: Lens, drafts: Drafts, prompts_file: Path, tmp_path: Path
) -> None:
    methods = bench_methods(target, drafts, None, ["pld"])
    long, empty = tmp_path / "long.jsonl", tmp_path / "empty.jsonl"
    long.write_text('{"id": "far", "prompt": "' + "1 2 " * 150 + '"}')
    empty.write_text("")

    def go(*sets: str) -> None:
        run_bench(target, drafts, None, methods, tmp_path / "run", BenchPlan(sets))

    with pytest.raises(SwitchSDError, match=r"room in the context .* far with 300"):
        go(str(long))
    with pytest.raises(SwitchSDError, match="holds no prompts"):
        go(str(prompts_file), str(empty))
    with pytest.raises(SwitchSDError, match="unknown benchmark"):
        go("humanevil")
    with pytest.raises(SwitchSDError, match="two prompts are called"):
        go(str(prompts_file), str(prompts_file))


app = typer.Typer()
app.command("bench")(bench_command)
app.command("other")(lambda: None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sets", ","], "no prompt sets"),
        (["--prompts", "0"], "at least 1"),
        (["--temperature", "warm"], "--temperature warm"),
        (["--temperature", "-1"], "at least 0"),
        (["--check-replay"], "give --trace"),
        (["--profile", "nowhere.json"], "give --trace"),
        (["--profile", "nowhere.json", "--trace", "t"], r"nowhere\.json"),
        (["--tables"], "not a run folder"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["bench", "--run", str(out), *arguments])
    assert isinstance(done.exception, SwitchSDError), done.output
    assert pd.Series([str(done.exception)]).str.contains(said).all(), done.exception
    assert not out.exists()


def test_tables_need_a_finished_benchmark(tmp_path: Path) -> None:
    written(tmp_path / "trace", made_up()).finish()
    done = CliRunner().invoke(app, ["bench", "--tables", "--run", str(tmp_path / "trace")])
    assert "no finished run of `switchsd bench`" in str(done.exception)
