"""`switchsd probe …` and `switchsd data build …`: bad input in one line, good input to a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from switchsd.probing.copy_probe import CopyProbe

Call = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["probe", "study"], "--all"),
        (["probe", "study", "--study", "layerz"], "layerz"),
        (["probe", "describe", "nowhere"], "no probe in nowhere"),
        (["data", "build", "copy-diversity", "--temperature", "-1"], "at least 0"),
        (["data", "build", "copy-diversity", "--prompts", "many"], "--prompts"),
    ],
)
def test_bad_input_is_named(switchsd: Call, arguments: list[str], said: str) -> None:
    done = switchsd(*arguments)
    assert done.returncode == 2, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_train_refuses_to_write_over_a_probe(switchsd: Call, tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text("{}")
    done = switchsd("probe", "train", "--out", str(tmp_path), "--run", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert not (tmp_path / "run").exists()


def test_describe_prints_what_the_probe_is(switchsd: Call, tmp_path: Path) -> None:
    CopyProbe("blocks.1.hook_attn_out", 2, 0.4, torch.ones(4), 0.0, "m", "f" * 32).save(tmp_path)
    done = switchsd("probe", "describe", str(tmp_path))
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert (about["site"], about["label_offset"], about["width"]) == (
        "blocks.1.hook_attn_out", 2, 4,
    )  # fmt: skip


@pytest.mark.model
def test_build_writes_a_corpus(switchsd: Call, tmp_path: Path) -> None:
    out = tmp_path / "c"
    done = switchsd("data", "build", "constructed-copy", "--out", str(out), "--tokens", "400")
    assert done.returncode == 0, done.stderr
    assert len(pd.read_parquet(out / "corpus.parquet")) == 3
    assert (out / "manifest.json").is_file()
