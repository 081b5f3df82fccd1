"""`switchsd replay` and `switchsd profile`: what is written, and bad input in one line.

Called as commands, but in this process: without a model there is nothing to wait for.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from switchsd import SwitchSDError
from switchsd.analysis.cost.profile import LatencyProfile
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.apps.commands.replay import replay_command
from switchsd.apps.commands.trace import profile_command
from switchsd.runs import Run
from tiny_traces import made_up, profile_for, written
from typer.testing import CliRunner

app = typer.Typer()
app.command("replay")(replay_command)
app.command("profile")(profile_command)


def run(*arguments: object) -> str:
    """What the command prints; raises what it raises."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    written(folder, made_up(prompts=4, tokens=30)).finish()
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    profile_for().save(path)
    return path


def test_sweeps_what_is_named(trace: Path, profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = run(
        "replay", "--trace", trace, "--run", out, "--profile", profile, "--policy", "switchsd",
        "--policy", "vanilla", "--policy", "eagle3", "--tau", 0.2, "--tau", 0.7, "--gamma", 2,
        "--gamma", 4, "--W", 2, "--n", 1, "--steps",
    )  # fmt: skip
    assert "switchsd" in said
    table = Run(out).table("replay")
    # two thresholds × two lookaheads, one vanilla, two lookaheads
    assert table.groupby("policy")["setting"].nunique().to_dict() == {
        "switchsd": 4, "vanilla": 1, "eagle3": 2,
    }  # fmt: skip
    assert set(table["set"]) == {"all", "set0", "set1"}
    metrics = Run(out).metrics()
    assert metrics["settings"] == 7
    assert metrics["prompts"] == 4
    assert Run(out).manifest()["state"] == "complete"
    traced, costs = CounterfactualTrace.read(trace), LatencyProfile.load(profile)
    steps = Run(out).table("steps")
    rows = table[table["set"] == "all"].set_index("setting")
    for number, row in rows.iterrows():
        gamma = None if pd.isna(row["gamma"]) else int(row["gamma"])
        tau = None if pd.isna(row["tau"]) else row["tau"]
        setting = Setting(row["policy"], row["W"], 10, row["n"], tau, None, gamma)
        played = replay(traced, setting, profile=costs)
        assert row["ms"] == pytest.approx(played.sums()["ms"])
        mine = steps[steps["setting"] == number].drop(columns="setting").reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, played.steps())


def test_oracle_shares_are_written(trace: Path, profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(
        "replay", "--trace", trace, "--run", out, "--profile", profile, "--oracle",
        "--policy", "switchsd", "--policy", "copyspec", "--policy", "vanilla", "--policy", "sps",
    )  # fmt: skip
    shares = pd.DataFrame(json.loads((out / "metrics.json").read_text())["oracle_share"])
    assert list(shares) == ["policy", "set", "share"]
    assert {"switchsd", "copyspec", "vanilla", "sps", "oracle_full"} == set(shares["policy"])
    always = shares[shares["policy"] == "sps"]["share"]
    assert always.abs().max() < 1e-9  # it is always-draft itself
    assert (shares[shares["policy"] == "switchsd"]["share"] <= 1).all()


def test_without_a_profile_there_are_no_times(trace: Path, tmp_path: Path) -> None:
    run("replay", "--trace", trace, "--run", tmp_path / "r", "--policy", "suffix")
    table = Run(tmp_path / "r").table("replay")
    assert "steps" in table
    assert "ms" not in table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "nowhere"], "nowhere is not a run folder"),
        (["--policy", "fastest"], "unknown policy 'fastest'"),
        (["--oracle"], "give --profile"),
        (["--reward", "speed"], "unknown reward 'speed'"),
        (["--policy", "bandit-ucb", "--reward", "throughput"], "latency profile"),
        (["--profile", "nowhere.json"], "nowhere.json"),
        (["--draft", "tree_9_9_9"], "no draft 'tree_9_9_9'"),
        (["--gamma", "0"], "gamma = 0"),
        (["--tau", "7"], "tau = 7"),
    ],
)
def test_bad_input_is_named(trace: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    out = tmp_path / "run"
    named = arguments if "--trace" in arguments else ["--trace", str(trace), *arguments]
    with pytest.raises(SwitchSDError, match=said):
        run("replay", "--run", out, *named)
    assert not out.exists(), "nothing is begun on bad input"


def test_a_profile_without_the_policys_costs_is_refused(trace: Path, tmp_path: Path) -> None:
    profile_for(["eagle3"]).save(tmp_path / "p.json")
    with pytest.raises(SwitchSDError, match="lacks draft of sps"):
        run("replay", "--trace", trace, "--run", tmp_path / "r", "--policy", "eagle3", "--policy",
            "sps", "--profile", tmp_path / "p.json")  # fmt: skip
    assert not (tmp_path / "r").exists()


def test_profile_writes_over_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("mine")
    with pytest.raises(SwitchSDError, match="--replace"):
        run("profile", "--out", tmp_path / "p.json", "--model", "nowhere")
    with pytest.raises(SwitchSDError, match="repeats = 0"):
        run("profile", "--out", tmp_path / "q.json", "--repeats", 0)
    assert (tmp_path / "p.json").read_text() == "mine"
