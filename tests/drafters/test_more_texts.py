"""Training on more than a model's own completions, and going on from a finished draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.eagle3.checkpoint import load_head
from switchsd.decoding.training.eagle3_task import Eagle3Recipe, frequent_tokens
from switchsd.decoding.training.gather import gather
from switchsd.decoding.training.kinds import Eagle3Kind, Kind, SpsKind
from switchsd.decoding.training.loop import Schedule
from switchsd.decoding.training.run import Plan, read_split, train_draft
from switchsd.decoding.training.sps_task import SpsRecipe
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from switchsd.progress import silent
from tiny_models import tiny_model
from tiny_training import features, greedy_texts
from tolerance import close

QUICK = Schedule(passes=2, batch_tokens=128, lr=3e-3, warmup=2, check_every=4)
EAGLE3 = Eagle3Kind(Eagle3Recipe(draft_vocab_size=26, steps=2))
SPS = SpsKind(SpsRecipe(layers=1, draft_vocab_size=26))


@pytest.fixture(scope="module")
def target(tiny: Callable[..., Lens]) -> Lens:
    return tiny("llama", num_hidden_layers=5)


@pytest.fixture
def own(target: Lens, tmp_path: Path) -> Path:
    file = tmp_path / "own.parquet"
    greedy_texts(target, count=48).to_parquet(file)
    return file


def given(seed: int, count: int = 20) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"prompt_ids": rng.integers(0, 32, 5).tolist(), "completion_ids": rng.integers(0, 32, 20)}
        for _ in range(count)
    ]
    return pd.DataFrame(rows).assign(temperature=np.nan)


def run_training(target: Lens, plan: Plan, path: Path) -> Any:
    return train_draft(target, plan, path, None, progress=silent, say=lambda line: None)


@pytest.mark.model
def test_files_become_answers_to_requests(tokenizer: Any, tmp_path: Path) -> None:
    model = tiny_model("llama", vocab_size=len(tokenizer), hidden_size=16)
    lens = wrap(model, tokenizer, name="tiny")
    code = "\n".join(f"def f{n}(x):\n    return x + {n}" for n in range(80))
    for name in ("a.py", "deep/b.md", "tests/c.py", "test_d.py", "e.bin", "short.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("hello" if name == "short.txt" else code)
    found = gather(lens, [tmp_path], tokens=10**6, piece=100)
    assert {name.split("#")[0] for name in found["id"]} == {"a.py", "deep/b.md"}
    assert found["temperature"].isna().all()
    whole = tokenizer(code).input_ids
    for name, ids in zip(found["id"], found["completion_ids"], strict=True):
        number = int(name.split("#")[1])
        assert ids == whole[number * 100 : number * 100 + 100]
        assert 64 <= len(ids) <= 100
    asked = tokenizer.decode(found["prompt_ids"].iloc[0])
    assert found["id"].iloc[0].split("#")[0] in asked
    few = gather(lens, [tmp_path], tokens=150, piece=100)
    assert 150 <= few["completion_ids"].map(len).sum() < 150 + 6 * 100
    with pytest.raises(SwitchSDError, match="no folder"):
        gather(lens, [tmp_path / "nowhere"], tokens=10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SwitchSDError, match=r"no \.py"):
        gather(lens, [tmp_path / "empty"], tokens=10)


def test_held_out_texts_come_from_the_first_file_and_are_in_no_other(
    target: Lens, own: Path, tmp_path: Path
) -> None:
    alone = read_split(target, Plan(EAGLE3, (own,), QUICK, held_out=0.15))
    long = [*range(30), 1, 2]
    first = pd.read_parquet(own)
    first.at[alone.checked[0], "prompt_ids"] = np.array(long)
    first.to_parquet(own)
    more = given(1)
    more.at[3, "prompt_ids"] = long[2:]  # shares a passage with a held-out text
    more.to_parquet(tmp_path / "more.parquet")
    split = read_split(target, Plan(EAGLE3, (own, tmp_path / "more.parquet"), QUICK, held_out=0.15))
    assert split.files == (48, 20)
    assert split.checked == alone.checked
    assert set(split.train) == set(alone.train) | {48 + i for i in range(20) if i != 3}


def test_texts_nobody_generated_do_not_choose_the_vocabulary(target: Lens, own: Path) -> None:
    texts = pd.read_parquet(own)
    extra = pd.DataFrame({"prompt_ids": [[1]], "completion_ids": [[31] * 10_000]})
    both = pd.concat([texts, extra.assign(temperature=np.nan)], ignore_index=True)
    assert torch.equal(frequent_tokens(both, 12, 32), frequent_tokens(texts, 12, 32))
    assert 31 in frequent_tokens(extra.assign(temperature=np.nan), 12, 32)


def test_two_files_are_trained_on_as_one(target: Lens, own: Path, tmp_path: Path) -> None:
    given(1).to_parquet(tmp_path / "more.parquet")
    plan = Plan(EAGLE3, (own, tmp_path / "more.parquet"), QUICK, held_out=0.15)
    run = run_training(target, plan, tmp_path / "run")
    assert run.metrics()["tokens"] > 20 * 25
    assert {p.name for p in (tmp_path / "run" / "features").iterdir()} == {"own", "more"}
    assert "`own.parquet`" in (tmp_path / "run" / "draft" / "README.md").read_text()
    with pytest.raises(SwitchSDError, match="one name"):
        Plan(EAGLE3, (own, tmp_path / "x" / "own.parquet"), QUICK)


def test_features_of_two_stores_are_those_of_their_texts(
    target: Lens, own: Path, tmp_path: Path
) -> None:
    texts = pd.read_parquet(own)
    whole = features(target, texts, tmp_path / "whole")
    first = features(target, texts[:30].reset_index(drop=True), tmp_path / "first")
    second = features(target, texts[30:].reset_index(drop=True), tmp_path / "second")
    parts = type(whole)(texts, [*first.stores, *second.stores], target.device)
    rows, site = [31, 2, 47, 29, 30], whole.stores[0].key.sites[0]
    expected = whole.streams(rows, site, torch.float32)
    close(parts.streams(rows, site, torch.float32), expected, length=5 * target.d_model)
    with pytest.raises(SwitchSDError, match="features are of 30 texts"):
        type(whole)(texts, first.stores, target.device)


@pytest.mark.parametrize("kind", [EAGLE3, SPS], ids=["eagle3", "sps"])
def test_training_goes_on_from_a_finished_draft(
    target: Lens, own: Path, tmp_path: Path, kind: Kind
) -> None:
    plan = Plan(kind, (own,), QUICK, held_out=0.15, store_dtype="float32")
    run_training(target, plan, tmp_path / "run")
    draft = tmp_path / "run" / "draft"
    still = replace(plan, schedule=replace(QUICK, passes=0.01, lr=1e-15), start_from=draft)
    run_training(target, still, tmp_path / "again")
    again = tmp_path / "again" / "draft"
    assert (again / "model.safetensors").read_bytes() == (draft / "model.safetensors").read_bytes()
    fresh = replace(still, start_from=None)
    run_training(target, fresh, tmp_path / "fresh")
    other = tmp_path / "fresh" / "draft" / "model.safetensors"
    assert other.read_bytes() != (draft / "model.safetensors").read_bytes()


def test_a_draft_of_another_shape_is_no_start(target: Lens, own: Path, tmp_path: Path) -> None:
    plan = Plan(EAGLE3, (own,), QUICK, held_out=0.15)
    run_training(target, plan, tmp_path / "run")
    draft = tmp_path / "run" / "draft"
    assert load_head(draft, target).config.draft_vocab_size == 26
    smaller = Eagle3Kind(replace(EAGLE3.recipe, draft_vocab_size=20))
    with pytest.raises(SwitchSDError, match="another shape"):
        run_training(target, replace(plan, kind=smaller, start_from=draft), tmp_path / "other")
