"""`switchsd draft …` from prompts to a draft that decodes, on a random-weight model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.data.benchmarks import load_benchmark
from switchsd.decoding.drafters.draft_card import read_card
from switchsd.decoding.eagle3.checkpoint import load_head
from switchsd.decoding.engine import generate
from switchsd.decoding.neural import neural_drafter, read_draft
from switchsd.decoding.policies import Options, build_policy
from switchsd.decoding.training.distill import check_own, distill, fitting
from switchsd.decoding.training.eagle3_task import Eagle3Recipe, Eagle3Task
from switchsd.decoding.training.features import TextFeatures
from switchsd.decoding.training.kinds import Eagle3Kind, SpsKind
from switchsd.decoding.training.loop import Schedule
from switchsd.decoding.training.run import Plan, read_split, train_draft
from switchsd.decoding.training.sps_task import SpsRecipe
from switchsd.probing.activations.store import open_store
from switchsd.probing.lens import Lens
from switchsd.probing.loading import load
from switchsd.progress import silent
from switchsd.runs import read_parquet
from tiny_models import tiny_model
from tiny_training import greedy_texts

EAGLE3 = Eagle3Kind(Eagle3Recipe(draft_vocab_size=26, steps=2))
SPS = SpsKind(SpsRecipe(layers=1, draft_vocab_size=26))
QUICK = Schedule(passes=3, batch_tokens=128, lr=3e-3, warmup=2, check_every=4)


@pytest.fixture(scope="module")
def target(tiny: Callable[..., Lens]) -> Lens:
    return tiny("llama", num_hidden_layers=5)


@pytest.fixture(scope="module")
def texts_file(target: Lens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.parquet"
    greedy_texts(target, count=48).to_parquet(file)
    return file


@pytest.fixture
def plan(texts_file: Path) -> Plan:
    return Plan(EAGLE3, (texts_file,), QUICK, held_out=0.15, store_dtype="float32")


def run_training(lens: Lens, plan: Plan, path: Path, out: Path | None = None, **hooks: Any) -> Any:
    hooks = {"progress": silent, "say": lambda line: None, **hooks}
    return train_draft(lens, plan, path, out, **hooks)


# ---- the whole way on the command line -----------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = tiny_model(
        "llama", vocab_size=len(tokenizer), hidden_size=16, max_position_embeddings=512
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []
    for number in range(40):
        words = " ".join(str(n) for n in rng.integers(100, 999, 30))
        turns = [f"Sum these: {words}.", "And now double it."][: 1 + (number % 10 == 0)]
        lines.append({"id": f"p/{number}", "domain": "math" if number % 2 else "code"})
        lines[-1]["turns"] = turns
    lines.append({"id": "p/long", "domain": "code", "turns": ["word " * 600]})
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.mark.model
def test_from_prompts_to_a_draft_that_decodes(
    switchsd: Callable[..., Any], model_folder: Path, prompts_file: Path, tmp_path: Path
) -> None:
    model = ("--model", str(model_folder), "--dtype", "float32")
    texts = tmp_path / "texts.parquet"
    done = switchsd(
        "draft", "distill", "--prompts", str(prompts_file), "--out", str(texts),
        "--max-new-tokens", "10", "--greedy", "0.75", *model,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 41 prompts are too long" in done.stderr
    assert "40 completions" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["texts.parquet"]
    run, out = tmp_path / "run", tmp_path / "head"
    done = switchsd(
        "draft", "train", "eagle3", "--texts", str(texts), "--run", str(run), "--out", str(out),
        "--draft-vocab", "64", "--steps", "2", "--passes", "2", "--batch-tokens", "1024",
        "--check-every", "3", "--held-out", "0.2", "--aux-layers", "1,2,3", *model,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for said in ("texts with", "GB in", "capture", "training", "accepted", f"draft: {out}"):
        assert said in done.stdout, done.stdout
    assert json.loads((run / "manifest.json").read_text())["state"] == "complete"
    lens = load(str(model_folder))
    head = load_head(out, lens)
    assert head.config.aux_layers == (1, 2, 3)
    prompt = "Sum these: 123 456 123 456"
    vanilla, drafted = (
        switchsd(
            "generate", "--prompt", prompt, "--policy", policy, "--max-new-tokens", "20", "--json",
            *model, *draft,
        )
        for policy, draft in (("vanilla", ()), ("eagle3", ("--draft", str(out))))
    )  # fmt: skip
    assert drafted.returncode == 0, drafted.stderr
    assert json.loads(drafted.stdout)["ids"] == json.loads(vanilla.stdout)["ids"]
    assert sum(step["proposed"] for step in json.loads(drafted.stdout)["steps"]) > 0


def test_a_schedule_left_out_is_the_recipes_own() -> None:
    from switchsd.apps.commands.draft import Training

    plan = Training(lr=0.5, held_out=0.2, seed=3).plan(SPS, [Path("texts.parquet")])
    assert plan.schedule == replace(Schedule(), lr=0.5, seed=3)
    assert (plan.held_out, plan.store_dtype) == (0.2, "bfloat16")


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "eagle3", "--texts", "nowhere.parquet"], "nowhere.parquet does not exist"),
        (["train", "sps", "--texts", "{texts}", "--device", "tpu9"], "device"),
        (["train", "eagle3", "--texts", "{texts}", "--aux-layers", "1;2"], "three layers"),
        (["train", "eagle3", "--texts", "{texts}", "--passes", "0"], "passes has to be above 0"),
        (["train", "eagle3", "--texts", "{texts}", "--store-dtype", "int8"], "int8"),
        (["distill", "--prompts", "nowhere.jsonl", "--out", "x.parquet"], "nowhere.jsonl"),
        (["distill", "--prompts", "nowhere.jsonl", "--out", "{texts}"], "is there already"),
    ],
)
def test_bad_input_is_one_line(
    switchsd: Callable[..., Any],
    arguments: list[str],
    said: str,
    texts_file: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    given = [part.format(texts=texts_file) for part in arguments]
    if given[0] == "train":
        given += ["--run", str(tmp_path / "run")]
    done = switchsd("draft", *given, "--model", str(model_folder))
    assert done.returncode == 2, done
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


# ---- distilling ----------------------------------------------------------------------------------


def plain(texts: pd.DataFrame) -> list[list[Any]]:
    return [[list(v) if hasattr(v, "__len__") else v for v in row] for row in texts.values]


@pytest.fixture(scope="module")
def speaking(model_folder: Path) -> Lens:
    return load(str(model_folder))


@pytest.mark.model
def test_distilled_texts_are_the_models_own(
    speaking: Lens, prompts_file: Path, tmp_path: Path
) -> None:
    prompts = fitting(speaking, load_benchmark(prompts_file), 8)
    assert len(prompts) == 40
    seen: list[tuple[int, int]] = []
    texts = distill(
        speaking, prompts, tmp_path / "parts", max_new_tokens=8, greedy_share=0.5,
        progress=lambda what, done, total: seen.append((done, total)),
    )  # fmt: skip
    assert texts["id"].tolist() == prompts["prompt_id"].tolist()
    assert texts["domain"].tolist() == ["code", "math"] * 20
    assert texts["temperature"].value_counts().to_dict() == {0.0: 20, 0.8: 20}
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    greedy = texts.index[texts["temperature"] == 0].tolist()
    assert check_own(speaking, texts, greedy) > 0.99
    two_turns = speaking.tokenizer.decode(texts["prompt_ids"][0])
    assert "And now double it." in two_turns
    again = distill(speaking, prompts, tmp_path / "parts", max_new_tokens=8, greedy_share=0.5)
    assert plain(again) == plain(texts)


@pytest.mark.model
def test_distilling_goes_on(
    speaking: Lens, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = fitting(speaking, load_benchmark(prompts_file), 4)
    asked: list[int] = []
    true = speaking.model.generate

    def counted(ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        if len(asked) == stop:
            raise KeyboardInterrupt
        asked.append(len(ids))
        return true(ids, **settings)

    monkeypatch.setattr(speaking.model, "generate", counted)
    stop, settings = 3, {"max_new_tokens": 4, "batch_size": 8}
    with pytest.raises(KeyboardInterrupt):
        distill(speaking, prompts, tmp_path / "parts", **settings)
    stop = -1
    first = sum(asked)
    texts = distill(speaking, prompts, tmp_path / "parts", **settings)
    assert 0 < first < sum(asked)
    whole = distill(speaking, prompts, tmp_path / "whole", **settings)
    assert plain(texts) == plain(whole)
    assert sum(asked) == 2 * (sum(asked) // 2)  # both took as many prompts: none twice
    with pytest.raises(SwitchSDError, match="another corpus"):
        distill(speaking, prompts, tmp_path / "parts", max_new_tokens=5)


@pytest.mark.model
def test_prompts_that_do_not_fit_are_left_out(speaking: Lens) -> None:
    prompts = pd.DataFrame({"turns": [["short"], ["word " * 500], ["a", "b", "c"]]})
    assert fitting(speaking, prompts, 100)["turns"].tolist() == [["short"], ["a", "b", "c"]]
    assert fitting(speaking, prompts, 200)["turns"].tolist() == [["short"]]
    with pytest.raises(SwitchSDError, match="no prompt leaves room for 600"):
        fitting(speaking, prompts, 600)


@pytest.mark.parametrize(
    "settings",
    [{"greedy_share": 1.2}, {"temperature": -0.1}, {"max_new_tokens": 0}, {"batch_size": 0}],
)
def test_distilling_refuses_settings(
    target: Lens, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(SwitchSDError, match="a share lies in 0-1"):
        distill(target, pd.DataFrame(), tmp_path, **settings)


# ---- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EAGLE3, SPS])
def test_trained_draft_is_what_its_card_says(
    target: Lens, plan: Plan, tmp_path: Path, kind: Any
) -> None:
    plan = replace(plan, kind=kind, learning_curve=True, licence="Free as air.")
    said: list[str] = []
    run = run_training(target, plan, tmp_path / "run", say=said.append)
    metrics, folder = run.metrics(), run.path / "draft"
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "draft.json", "model.safetensors", "README.md",
    }  # fmt: skip
    card = read_card(folder)
    assert (card["kind"], card["fingerprint"]) == (kind.name, target.fingerprint)
    assert card["about"]["accepted_per_position"] == metrics["accepted_per_position"]
    assert card["about"]["learning_curve"] == metrics["learning_curve"]
    assert card["about"]["recipe"]["draft_vocab_size"] == 26
    assert card["about"]["texts"] == metrics["texts"] < 48
    readme = (folder / "README.md").read_text()
    assert "Free as air." in readme
    assert f"{metrics['mean_accepted']:.3f}" in readme
    tokens = [row["tokens"] for row in metrics["learning_curve"]]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 4
    assert tokens[-1] == metrics["tokens"]
    history = run.table("history")
    assert history["step"].is_monotonic_increasing
    assert {"tokens", "loss", "accepted", "accepted_1"} <= set(history)
    assert run.manifest()["state"] == "complete"
    assert any("GB in" in line for line in said)
    # decodes exactly, and as many drafts are accepted as the card says
    draft = read_draft(folder, target)
    policy = build_policy(kind.name, Options(neural=neural_drafter(kind.name, target, draft=draft)))
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    truth = generate(target, prompt, "vanilla", max_new_tokens=30, eos_ids=())
    got = generate(target, prompt, policy, max_new_tokens=30, eos_ids=())
    assert got.ids == truth.ids
    assert sum(step.proposed for step in got.trace.steps) > 0


def test_card_holds_the_figures_of_the_weights_on_disk(
    target: Lens, plan: Plan, tmp_path: Path
) -> None:
    run = run_training(target, plan, tmp_path / "run")
    split = read_split(target, plan)
    data = TextFeatures(split.texts, [open_store(run.path / "features")], target.device)
    head = load_head(run.path / "draft", target)
    shares = Eagle3Task(head, target, data, EAGLE3.recipe).evaluate(split.checked)
    assert shares == pytest.approx(run.metrics()["accepted_per_position"])


class Stop:
    """Progress that interrupts when so much of something is done."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at = what, at

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == self.what and done >= self.at:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_to_the_same_draft(
    target: Lens, plan: Plan, tmp_path: Path
) -> None:
    plan = replace(plan, learning_curve=True)
    whole = run_training(target, plan, tmp_path / "whole")
    path = tmp_path / "run"
    for stop in (Stop("capture", 1), Stop("training", 6), Stop("training", 9)):
        with pytest.raises(KeyboardInterrupt):
            run_training(target, plan, path, progress=stop)
        assert not (path / "draft").exists()
    said: list[str] = []
    run = run_training(target, plan, path, say=said.append)
    assert any("going on" in line for line in said)
    for name in ("model.safetensors", "config.json"):
        mine, theirs = (part.path / "draft" / name for part in (run, whole))
        assert mine.read_bytes() == theirs.read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("run")] == ["run"]
    curves = [
        [row["mean_accepted"] for row in part.metrics()["learning_curve"]] for part in (run, whole)
    ]
    assert curves[0] == curves[1]


def test_other_settings_move_an_unfinished_run_aside(
    target: Lens, plan: Plan, tmp_path: Path
) -> None:
    plan, path = replace(plan, features=tmp_path / "features"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_training(target, plan, path, progress=Stop("training", 6))
    said: list[str] = []
    captured: list[str] = []
    other = replace(plan, schedule=replace(QUICK, lr=1e-3))
    run_training(
        target, other, path, say=said.append, progress=lambda what, *_: captured.append(what)
    )
    assert any("moved aside" in line for line in said)
    assert "capture" not in captured  # the features are the same
    assert len([p for p in tmp_path.iterdir() if p.name.startswith("run")]) == 2


def test_folders_that_hold_something_else_are_refused(
    target: Lens, plan: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    with pytest.raises(SwitchSDError, match="not empty"):
        run_training(target, plan, tmp_path / "run", out)
    with pytest.raises(SwitchSDError, match="no run"):
        run_training(target, plan, out)
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "manifest.json").write_text(json.dumps({"schema": 1, "command": "demo"}))
    with pytest.raises(SwitchSDError, match=r"a run of `demo`.*--run"):
        run_training(target, plan, demo)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "out"]
    assert (out / "mine").read_text() == "keep"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(temperature=0.8), "none of the .* greedy"),
        (lambda t: t.head(1), "too few"),
        (lambda t: t.assign(completion_ids=[[99]] * len(t)), "another model"),
        (lambda t: t.assign(completion_ids=[[5, 9, 5, 11] * 5] * len(t)), "another model"),
        (lambda t: t.assign(completion_ids=[[1] * 300] * len(t)), "context"),
        (lambda t: t.assign(completion_ids=[[]] * len(t)), "no completions"),
    ],
)
def test_texts_that_teach_nothing_right_are_refused(
    target: Lens, plan: Plan, tmp_path: Path, change: Any, message: str
) -> None:
    file = tmp_path / "texts.parquet"
    change(read_parquet(plan.texts[0])).to_parquet(file)
    with pytest.raises(SwitchSDError, match=message):
        run_training(target, replace(plan, texts=(file,)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Eagle3Kind(Eagle3Recipe(draft_vocab_size=33)), "vocabulary of 33"),
        (Eagle3Kind(Eagle3Recipe(draft_vocab_size=8, aux_layers=(0, 2, 3))), "three in 1-5"),
        (Eagle3Kind(Eagle3Recipe(draft_vocab_size=8, aux_layers=(1, 2))), "three in 1-5"),
        (Eagle3Kind(Eagle3Recipe(draft_vocab_size=8, steps=0)), "steps = 0"),
        (SpsKind(SpsRecipe(draft_vocab_size=8, layers=0)), "layers = 0"),
        (SpsKind(SpsRecipe(draft_vocab_size=0)), "vocabulary of 0"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(
    target: Lens, plan: Plan, tmp_path: Path, kind: Any, message: str
) -> None:
    with pytest.raises(SwitchSDError, match=message):
        run_training(target, replace(plan, kind=kind), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_held_out_texts_are_never_trained_on(target: Lens, plan: Plan) -> None:
    split = read_split(target, plan)
    assert not set(split.train) & set(split.checked)
    assert split.checked
    other = read_split(target, replace(plan, schedule=replace(QUICK, seed=5)))
    assert other.checked != split.checked
