"""`switchsd trace`: a run folder that resumes, reads back, and refuses what is not its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.traces import write as trace_writer
from switchsd.analysis.traces.columns import TraceSettings
from switchsd.analysis.traces.trace import CounterfactualTrace, tokenizer_digest
from switchsd.analysis.traces.write import run_trace
from switchsd.data.chat import chat_ids
from switchsd.decoding.drafts import Drafts
from switchsd.decoding.eagle3.checkpoint import save_head
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.step.tree_shape import TreeShape
from switchsd.probing.corpora import asked as prompts
from switchsd.probing.corpora.asked import benchmark_prompts
from switchsd.probing.lens import Lens
from switchsd.probing.loading import load
from switchsd.runs import Run, read_json, write_json
from tiny_models import probe_for, tiny_model

SETTINGS = TraceSettings(12, (1, 3), (TreeShape(6, 2, 2),))


@pytest.fixture(scope="module")
def model_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = tiny_model(
        "llama", vocab_size=len(tokenizer), hidden_size=16, max_position_embeddings=256
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(model_folder: Path) -> Lens:
    return load(str(model_folder))


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [{"id": f"p/{n}", "turns": [f"Say {n} {n} {n}.", "Say it again."][: 1 + n % 2]}
             for n in range(4)]  # fmt: skip
    file = tmp_path_factory.mktemp("prompts") / "some.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def finished(target: Lens, prompts_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "trace"
    drafts = Drafts(random_head(target, std=0.2), None, {"eagle3": "abc"})
    run_trace(target, drafts, probe_for(target), path, SETTINGS, sets=[str(prompts_file)])
    return path


def test_second_turns_follow_the_models_own_answers(target: Lens, prompts_file: Path) -> None:
    found = benchmark_prompts(target, str(prompts_file), answer_tokens=6)
    assert list(found) == ["p/0", "p/1", "p/2", "p/3"]
    first = chat_ids(target.tokenizer, ["Say 1 1 1."])
    assert found["p/2"] == chat_ids(target.tokenizer, ["Say 2 2 2."])
    said = trace_writer.trace_prompt(
        target, "p", first, Drafts(None, None), None, TraceSettings(6)
    ).text.ids[len(first) :]
    text = target.tokenizer.decode(said, skip_special_tokens=True)
    assert found["p/1"] == chat_ids(target.tokenizer, ["Say 1 1 1.", "Say it again."], [text])
    assert list(benchmark_prompts(target, str(prompts_file), limit=1)) == ["p/0"]


def test_long_prompts_are_passed_over(target: Lens, tmp_path: Path) -> None:
    texts = ["one two", "one two three four five six", "one"]
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(json.dumps({"id": t, "prompt": t}) for t in texts))
    most = len(chat_ids(target.tokenizer, texts[:1]))
    every = list(benchmark_prompts(target, str(file)).values())
    short = benchmark_prompts(target, str(file), most_tokens=most)
    assert list(short.values()) == [every[0], every[2]]
    assert len(benchmark_prompts(target, str(file), most_tokens=most, limit=1)) == 1
    with pytest.raises(SwitchSDError, match="no prompt of at most 1 tokens"):
        benchmark_prompts(target, str(file), most_tokens=1)


def test_a_run_reads_back(target: Lens, finished: Path, prompts_file: Path) -> None:
    trace = CounterfactualTrace.read(finished, target)
    assert trace.prompts["prompt_id"].tolist() == ["p/0", "p/1", "p/2", "p/3"]
    assert set(trace.prompts["set"]) == {str(prompts_file)}
    assert set(trace.prompts["finish"]) <= {"length", "eos"}
    asked = benchmark_prompts(target, str(prompts_file))
    for row in trace.prompts.itertuples():
        assert list(row.ids[: row.n_prompt]) == asked[row.prompt_id]
        table = trace.positions[trace.positions["prompt_id"] == row.prompt_id]
        assert table["position"].tolist() == list(range(row.n_prompt, len(row.ids)))
    whole = trace.positions
    assert whole["prompt_id"].unique().tolist() == trace.prompts["prompt_id"].tolist()
    assert {"eagle3", "eagle3_room", "tree_6_2_2", "copy_n3"} <= set(whole.columns)
    assert "sps" not in whole
    settings = trace.settings
    assert settings["trees"] == [[6, 2, 2]]
    assert settings["eagle3"] == {"digest": "abc", "draft_vocab_size": target.d_vocab}
    assert settings["sps"] is None
    assert settings["probe"]["digest"] == probe_for(target).digest
    assert settings["probe"]["label_offset"] == 1
    assert settings["sampling"] == {"temperature": 0.0, "repetition_penalty": 1.0}
    assert settings["model"] == target.fingerprint
    metrics = Run(finished).metrics()
    assert metrics["prompts"] == 4
    assert metrics["positions"] == len(whole)
    assert metrics["trace_cost_over_generation"] >= 1
    some = CounterfactualTrace.read(finished, prompt_ids=["p/2", "p/1"], columns=["copy_n3"])
    assert some.prompts["prompt_id"].tolist() == ["p/2", "p/1"]
    assert some.positions["prompt_id"].unique().tolist() == ["p/2", "p/1"]
    assert list(some.positions) == ["prompt_id", "position", "limit", "score", "gap", "copy_n3"]
    with pytest.raises(SwitchSDError, match="no prompt 'p/9'"):
        CounterfactualTrace.read(finished, prompt_ids=["p/9"])


def test_an_interrupted_run_goes_on(
    target: Lens, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[str] = []
    asked: list[str] = []
    trace_one, ask = trace_writer.trace_prompt, prompts.benchmark_prompts

    def counted(lens: Lens, prompt_id: str, *args: Any) -> Any:
        if len(traced) == 2 and not (tmp_path / "go-on").exists():
            raise KeyboardInterrupt
        traced.append(prompt_id)
        return trace_one(lens, prompt_id, *args)

    def asking(lens: Lens, name: str, **options: Any) -> Any:
        asked.append(name)
        return ask(lens, name, **options)

    monkeypatch.setattr(trace_writer, "trace_prompt", counted)
    monkeypatch.setattr(prompts, "benchmark_prompts", asking)
    run = tmp_path / "trace"
    none = Drafts(None, None)
    reported: list[tuple[int, int]] = []

    def go(settings: TraceSettings = SETTINGS) -> None:
        run_trace(
            target, none, None, run, settings, sets=[str(prompts_file)],
            progress=lambda _, done, total: reported.append((done, total)),
        )  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        go()
    with pytest.raises(SwitchSDError, match="unfinished"):
        CounterfactualTrace.read(run)
    (run / "texts" / "0001.parquet").unlink()  # killed between the two files of a prompt
    (tmp_path / "go-on").touch()
    go()
    assert traced == ["p/0", "p/1", "p/1", "p/2", "p/3"]
    assert len(asked) == 1  # first answers are not given twice
    assert reported[-1] == (4, 4)
    assert len(CounterfactualTrace.read(run, target).positions) == 48
    go(TraceSettings(5, (1,)))  # other settings are another run: the finished one stays beside
    assert len(traced) == 9
    assert len(list(tmp_path.glob("trace-*"))) == 1


def copied(finished: Path, folder: Path) -> Path:
    import shutil

    shutil.copytree(finished, folder)
    return folder


def test_what_is_not_its_own_is_refused(
    target: Lens, finished: Path, tmp_path: Path, tiny: Callable[..., Lens]
) -> None:
    other = tiny("llama")
    with pytest.raises(SwitchSDError, match="another model"):
        CounterfactualTrace.read(finished, other)
    tokenizer = target.tokenizer
    changed = Lens(target.name, target.model, None, "live")
    with pytest.raises(SwitchSDError, match="another tokenizer"):
        CounterfactualTrace.read(finished, changed)
    assert tokenizer_digest(target) != tokenizer_digest(changed)
    assert tokenizer is target.tokenizer
    for place, (change, message) in enumerate(
        [
            (lambda m: m["config"]["sampling"].update(temperature=0.7), "sampled"),
            (lambda m: m.update(command="demo"), "switchsd demo"),
            (lambda m: m.update(state="running"), "unfinished"),
            (lambda m: m["config"].pop("ns"), "lacks the trace's settings"),
            (lambda m: m.update(schema=99), "newer"),
        ]
    ):
        path = copied(finished, tmp_path / str(place))
        manifest = read_json(path / "manifest.json")
        change(manifest)
        write_json(path / "manifest.json", manifest)
        with pytest.raises(SwitchSDError, match=message):
            CounterfactualTrace.read(path, target)
    with pytest.raises(SwitchSDError, match="not a run folder"):
        CounterfactualTrace.read(tmp_path / "nothing")


def test_damage_is_named(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path / "damaged")
    file = path / "positions" / "0001.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SwitchSDError, match=r"0001\.parquet is damaged"):
        CounterfactualTrace.read(path)
    assert len(CounterfactualTrace.read(path, prompt_ids=["p/0"]).prompts) == 1
    file.write_bytes((path / "positions" / "0002.parquet").read_bytes())
    with pytest.raises(SwitchSDError, match="those of p/1"):
        CounterfactualTrace.read(path)
    pd.DataFrame({"a": [1]}).to_parquet(file)
    with pytest.raises(SwitchSDError, match="those of p/1"):
        CounterfactualTrace.read(path)
    file.unlink()
    with pytest.raises(SwitchSDError, match="does not exist"):
        CounterfactualTrace.read(path)
    (path / "prompts.parquet").write_bytes(b"no")
    with pytest.raises(SwitchSDError, match=r"prompts\.parquet is damaged"):
        CounterfactualTrace.read(path)


def test_bad_prompts_are_named(target: Lens, tmp_path: Path, prompts_file: Path) -> None:
    long, empty = tmp_path / "long.jsonl", tmp_path / "empty.jsonl"
    long.write_text(
        '{"id": "fine", "prompt": "a"}\n{"id": "far", "prompt": "' + "x y " * 300 + '"}'
    )
    empty.write_text("")

    def go(*sets: str) -> None:
        run_trace(target, Drafts(None, None), None, tmp_path / "run", SETTINGS, sets=sets)

    with pytest.raises(SwitchSDError, match="the first is far with"):
        go(str(long))
    assert not (tmp_path / "run" / "texts").exists()  # before anything is decoded
    for sets, message in (
        ((), "no prompt sets"),
        ((str(prompts_file), str(empty)), "holds no prompts"),
        ((str(prompts_file), "humanevil"), "unknown benchmark"),
        ((str(prompts_file), str(prompts_file)), "two prompts are called 'p/0'"),
    ):
        with pytest.raises(SwitchSDError, match=message):
            go(*sets)
    other = probe_for(target)
    object.__setattr__(other, "fingerprint", "x" * 32)
    with pytest.raises(SwitchSDError, match="trained on"):
        run_trace(target, Drafts(None, None), other, tmp_path / "run", SETTINGS, sets=["x"])


@pytest.mark.model
def test_on_the_command_line(
    switchsd: Callable[..., Any], model_folder: Path, target: Lens, prompts_file: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    head, probe = tmp_path / "head", tmp_path / "probe"
    save_head(random_head(target, draft_vocab_size=64, std=0.2), head)
    probe_for(target).save(probe)
    run = tmp_path / "trace"
    common = ("trace", "--model", str(model_folder), "--run", str(run), "--max-new-tokens", "8")
    done = switchsd(
        *common, "--sets", f"{prompts_file}", "--limit", "3", "--eagle3", str(head),
        "--sps", str(model_folder), "--probe", str(probe), "--tree", "6/2/2", "--tree", "9/3/2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 prompts" in done.stdout
    assert "left out" not in done.stderr
    trace = CounterfactualTrace.read(run, target)
    table = trace.positions
    assert {"eagle3", "sps", "tree_6_2_2", "tree_9_3_2"} <= set(table.columns)
    # the draft is the target itself: everything is accepted, as far as live decoding lets it
    assert table["sps"].tolist() == np.minimum(table["limit"], 10).tolist()
    assert table["score"].notna().all()
    assert trace.settings["eagle3"]["draft_vocab_size"] == 64
    assert len(trace.settings["eagle3"]["digest"]) == 24
    done = switchsd(*common, "--sets", str(prompts_file), "--no-sps")
    assert done.returncode == 0, done.stderr
    for said in ("no eagle3 draft for", "no probe for"):
        assert said in done.stderr
    assert "sps" not in done.stderr
    assert "eagle3" not in CounterfactualTrace.read(run).positions
    assert len(CounterfactualTrace.read(run).prompts) == 4
    for wrong, message in (
        (("--sets", ","), "no prompt sets"),
        (("--sets", "humanevil"), "unknown benchmark"),
        (("--tree", "6/2"), "total/depth/top_k"),
        (("--max-new-tokens", "0"), "max_new_tokens = 0"),
        (("--sps", str(head), "--sets", str(prompts_file)), "name it with --eagle3"),
    ):
        done = switchsd(*common, *wrong)
        assert done.returncode == 2, wrong
        assert message in done.stderr.replace("\n", " ")
