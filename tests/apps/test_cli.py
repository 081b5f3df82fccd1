"""The command line: bad input gets one line and exit code 2, good input an answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from switchsd.apps.commands.options import Target, grouped
from switchsd.apps.commands.probe import Sizes
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lab.lab import LabConfig
from switchsd.probing.lens import Lens
from switchsd.runs import Run
from typer.testing import CliRunner

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def probe_folder(lens: Lens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    weight = torch.randn(lens.d_model) / 10
    CopyProbe("blocks.14.hook_attn_out", 2, 0.4, weight, 0.2, lens.name, lens.fingerprint).save(
        folder
    )
    return folder


def assert_refused(done: Any, *words: str) -> None:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_help_names_the_commands() -> None:
    command = [sys.executable, "-m", "switchsd", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "generate" in done.stdout


def test_a_group_of_options_stands_on_the_command_line_as_its_fields_do() -> None:
    app, seen = typer.Typer(), []

    @app.command()
    @grouped
    def command(*, first: int = 1, target: Target, last: str = "z") -> None:
        seen.append((first, target, last))

    runner = CliRunner()
    assert runner.invoke(app, ["--dtype", "float16", "--first", "3"]).exit_code == 0
    assert seen == [(3, Target(dtype="float16"), "z")]
    shown = runner.invoke(app, ["--help"]).output
    places = [shown.index(f"--{name}") for name in ("first", "model", "device", "dtype", "last")]
    assert places == sorted(places)


def test_the_lab_has_the_sizes_that_its_options_say() -> None:
    assert vars(Sizes()) == vars(LabConfig())


@pytest.mark.model
def test_generate_prints_text_and_json_and_writes_a_run(
    switchsd: Call, probe_folder: Path, tmp_path: Path
) -> None:
    done = switchsd(
        "generate", "--prompt", "-", "--probe", str(probe_folder), "--max-new-tokens", "12",
        "--json", "--run", str(tmp_path / "one"), stdin=b"Say: one two three.",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sum(step["emitted"] for step in answer["steps"]) == len(answer["ids"]) <= 12
    assert answer["text"]
    assert all(0 <= step["score"] <= 1 for step in answer["steps"])
    run = Run(tmp_path / "one")
    manifest, metrics = run.manifest(), run.metrics()
    assert (manifest["command"], manifest["state"]) == ("generate", "complete")
    assert manifest["config"]["prompt"] == "Say: one two three."
    assert (metrics["text"], metrics["tokens"]) == (answer["text"], len(answer["ids"]))
    tokens = run.table("tokens")
    assert tokens.loc[tokens["step"] >= 0, "id"].tolist() == answer["ids"]
    assert run.table("steps")["emitted"].tolist() == [s["emitted"] for s in answer["steps"]]


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "nope"], ["unknown policy", "vanilla"]),
        (["--W", "0"], ["W = 0"]),
        (["--D", "0"], ["D = 0"]),
        (["--n", "0"], ["n = 0"]),
        (["--tau", "2"], ["tau"]),
        (["--temperature", "-1"], ["temperature"]),
        (["--max-new-tokens", "0"], ["max_new_tokens"]),
    ],
)
def test_bad_settings_are_refused(
    switchsd: Call, probe_folder: Path, arguments: list[str], words: list[str]
) -> None:
    done = switchsd("generate", "--prompt", "hi", "--probe", str(probe_folder), *arguments)
    assert_refused(done, *words)
    assert len(done.stderr.strip().splitlines()) == 1


def test_bad_input_is_refused(switchsd: Call, tmp_path: Path) -> None:
    assert_refused(switchsd("generate", "--prompt", "  "), "prompt is empty")
    assert_refused(switchsd("generate", "--prompt", "x", "--model", str(tmp_path / "no")), "model")
    assert_refused(switchsd("generate", "--prompt", "x", "--dtype", "float8"), "float8")
    assert_refused(switchsd("generate"), "--prompt")
    assert_refused(switchsd("demo", "--problems", "0"), "n_decode")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").write_text("keep")
    assert_refused(switchsd("demo", "--run", str(tmp_path / "mine")), "no run")
    assert (tmp_path / "mine" / "text").read_text() == "keep"
    assert_refused(switchsd("generate", "--prompt", "-", stdin=b"\xff\xfe\x00"), "UTF-8")
    assert_refused(switchsd("nonsense"), "nonsense")


@pytest.mark.model
def test_damaged_and_missing_probes_are_refused(
    switchsd: Call, probe_folder: Path, tmp_path: Path
) -> None:
    missing = switchsd("generate", "--prompt", "x", "--probe", str(tmp_path))
    assert_refused(missing, "no probe in")
    (tmp_path / "probe.json").write_bytes((probe_folder / "probe.json").read_bytes())
    (tmp_path / "probe.safetensors").write_bytes(b"nonsense")
    assert_refused(switchsd("generate", "--prompt", "x", "--probe", str(tmp_path)), "damaged")


@pytest.mark.model
def test_prompt_beyond_the_context_is_refused(switchsd: Call) -> None:
    done = switchsd(
        "generate", "--prompt", "-", "--raw", "--policy", "vanilla", stdin=b"word " * 9000
    )
    assert_refused(done, "context")
