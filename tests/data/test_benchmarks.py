import json
from pathlib import Path

import pytest
from switchsd.data import benchmarks
from switchsd.data.benchmarks import BENCHMARKS, benchmark_folder, load_benchmark
from switchsd.data.hub import HubDataset, looks_like_hub
from switchsd.errors import SwitchSDError

COLUMNS = ["prompt_id", "source", "category", "turns"]


def write(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    return path


def test_humaneval_comes_from_its_package_in_order() -> None:
    frame = load_benchmark("humaneval", limit=12)
    assert list(frame.columns) == COLUMNS
    assert frame.prompt_id.tolist() == [f"HumanEval/{number}" for number in range(12)]
    assert frame.turns[0][0].startswith("from typing import List")
    assert len(load_benchmark("humaneval")) == 164


@pytest.mark.parametrize(
    ("name", "size", "n_turns"),
    [("math500", 500, 1), ("cnndm", 100, 1), ("mtbench", 80, 2), ("mt_redundant", 80, 2)],
)
def test_named_benchmarks_have_all_their_prompts(
    name: str, size: int, n_turns: int, shared_data: Path
) -> None:
    frame = load_benchmark(name, data_dir=shared_data)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == size
    assert frame.prompt_id.is_unique
    assert set(frame.turns.map(len)) == {n_turns}
    assert load_benchmark(name, data_dir=shared_data, limit=3).equals(frame.head(3))


def test_mtbench_has_its_categories(shared_data: Path) -> None:
    frame = load_benchmark("mtbench", data_dir=shared_data)
    assert {"writing", "coding", "math"} <= set(frame.category)


def test_any_jsonl_file_with_prompts_or_turns_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl",
        {"prompt": "Say hello."},
        {"id": 7, "turns": ["One.", "Two."], "category": "talk", "source": "me"},
    )
    frame = load_benchmark(path)
    assert frame.turns.tolist() == [["Say hello."], ["One.", "Two."]]
    assert frame.prompt_id.tolist() == ["mine/1", "7"]
    assert frame.category.tolist() == ["mine", "talk"]
    assert frame.source.tolist() == ["mine", "me"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"prompt": "a"}\n{broken\n', "line 2 is not JSON"),
        ('["a"]\n', "line 1 is not a JSON object"),
        ('{"text": "a"}\n', "line 1 has no usable prompt"),
        ('{"prompt": "  "}\n', "line 1 has no usable prompt"),
        ('{"turns": []}\n', "line 1 has no usable prompt"),
        ('{"turns": ["a", 3]}\n', "line 1 has no usable prompt"),
        ('{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}\n', "twice"),
        ("\n", "holds no prompts"),
    ],
)
def test_damaged_files_name_the_line(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(SwitchSDError, match=named):
        load_benchmark(path)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(SwitchSDError, match="line 1 is not JSON"):
        load_benchmark(path)


def test_limit_stops_before_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text('{"prompt": "a"}\n{broken\n')
    assert len(load_benchmark(path, limit=1)) == 1
    with pytest.raises(SwitchSDError, match="limit"):
        load_benchmark(path, limit=0)


def test_unknown_names_and_missing_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SwitchSDError, match=r"unknown benchmark 'gsm'.*humaneval.*jsonl"):
        load_benchmark("gsm")
    with pytest.raises(SwitchSDError, match=r"cannot read .*none\.jsonl"):
        load_benchmark(tmp_path / "none.jsonl")
    with pytest.raises(SwitchSDError, match=r"cannot read .*math500\.jsonl"):
        load_benchmark("math500", data_dir=tmp_path)


def test_the_folder_is_the_argument_or_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, named = tmp_path / "work", tmp_path / "named"
    for folder in (work, named):
        folder.mkdir()
    monkeypatch.setenv(benchmarks.DATA_VARIABLE, str(named))
    assert benchmark_folder() == named
    assert benchmark_folder(work) == work
    with pytest.raises(SwitchSDError, match="does not exist"):
        benchmark_folder(tmp_path / "gone")
    monkeypatch.delenv(benchmarks.DATA_VARIABLE)
    with pytest.raises(SwitchSDError, match="SWITCHSD_DATA"):
        load_benchmark("mtbench")


def test_every_registered_reader_is_callable_without_touching_anything() -> None:
    assert set(BENCHMARKS) == {"humaneval", "math500", "cnndm", "mtbench", "mt_redundant"}


def test_hub_names_are_told_from_paths() -> None:
    dataset = HubDataset.parse("org/name:config:train:text")
    assert (dataset.name, dataset.config, dataset.split, dataset.column) == (
        *("org/name", "config", "train", "text"),
    )
    assert HubDataset.parse("org/name::train:text").config is None
    assert HubDataset.parse("org/name:c:train", column="text").column == "text"
    assert looks_like_hub("org/name:config:train:text")
    for path in ("data/prompts.jsonl", "/tmp/a:b/c.jsonl", "./x/y:z.jsonl", "name"):
        assert not looks_like_hub(path)
    for wrong in ("org/name:train", "org/name:c::text", "org/name:c:train:text:more"):
        with pytest.raises(SwitchSDError, match="org/name:config:split:column"):
            load_benchmark(wrong)


def test_without_a_network_a_hub_dataset_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    import huggingface_hub.constants

    # offline mode, so that the test neither waits for a network nor uses one
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SwitchSDError, match=r"no-such-org/no-such-set.*network"):
        load_benchmark("no-such-org/no-such-set:default:train:text")
