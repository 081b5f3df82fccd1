"""Texts for training: read strictly, held out by shared passage, batched once a pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from switchsd import SwitchSDError
from switchsd.decoding.training.texts import hold_out, read_texts, shared_groups, token_batches

SYSTEM = list(range(1000, 1040))  # longer than a passage


def prompts(count: int, seed: int = 0, length: int = 60) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [SYSTEM + rng.integers(0, 900, length).tolist() for _ in range(count)]


def frame(texts: list[list[int]]) -> pd.DataFrame:
    return pd.DataFrame(
        {"prompt_ids": texts, "completion_ids": [[1, 2]] * len(texts), "temperature": 0.0}
    )


def test_prompts_with_a_passage_in_common_are_one_group() -> None:
    texts = prompts(6)
    texts[1][70:95] = texts[0][45:70]  # 25 tokens, elsewhere in the prompt
    texts[2][40:64] = texts[1][76:100]  # 24 with the second, none with the first
    texts[4][50:73] = texts[3][50:73]  # 23 are too few
    groups = shared_groups(texts)
    assert groups[0] == groups[1] == groups[2]
    assert len({groups[0], *groups[3:]}) == 4


def test_what_every_prompt_begins_with_is_nothing_in_common() -> None:
    groups = shared_groups(prompts(5))
    assert len(set(groups)) == 5
    same = shared_groups([SYSTEM, SYSTEM, SYSTEM])
    assert len(set(same)) == 1  # nothing but the common part: the same prompt


def test_short_prompts_share_a_group_only_where_they_are_the_same() -> None:
    groups = shared_groups([[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 2]])
    assert groups[0] == groups[2]
    assert len(set(groups)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_no_passage_on_both_sides(seed: int) -> None:
    texts = prompts(240)
    for i in range(0, 240, 2):  # pairs that share a passage
        texts[i + 1][45:75] = texts[i][50:80]
    for i in range(0, 60, 2):  # and a group that is a quarter of all
        texts[i][85:] = range(910, 940)
    train, held = hold_out(frame(texts), 0.1, seed)
    assert sorted(train + held) == list(range(240))
    assert 24 <= len(held) <= 25
    assert all((row ^ 1) in held for row in held)
    assert min(held) >= 60  # a group that large would be an odd sample
    assert hold_out(frame(texts), 0.1, seed) == (train, held)
    assert hold_out(frame(texts), 0.1, seed + 100)[1] != held


def test_too_few_texts_are_named() -> None:
    with pytest.raises(SwitchSDError, match="3 texts are too few"):
        hold_out(frame([prompts(1)[0]] * 3), 0.1, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_pass_holds_every_text_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 120, 200).tolist()
    lengths[7] = 900  # longer than a batch: alone in one
    rows = [row for row in range(200) if row % 9]
    batches = token_batches(lengths, rows, 512, seed)
    assert sorted(row for batch in batches for row in batch) == rows
    for batch in batches:
        padded = len(batch) * max(lengths[row] for row in batch)
        assert padded <= 512 or len(batch) == 1
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    assert sum(lengths[row] for row in rows) > 0.85 * padded  # of about equal length together
    assert batches == token_batches(lengths, rows, 512, seed)
    assert batches != token_batches(lengths, rows, 512, seed + 1)
    sizes = [lengths[batch[0]] for batch in batches]
    assert sizes != sorted(sizes)  # long and short batches in no order


def test_reads_completions_of_other_columns_too(tmp_path: Path) -> None:
    file = tmp_path / "texts.parquet"
    table = frame([[1, 2], [3], [4]])
    table["completion_ids"] = [[5], [], [6, 7]]
    table["domain"] = "code"
    table.drop(columns="temperature").to_parquet(file)
    texts = read_texts(file, 10)
    assert [list(ids) for ids in texts["completion_ids"]] == [[5], [6, 7]]
    assert texts.index.tolist() == [0, 1]
    assert texts["temperature"].tolist() == [0.0, 0.0]


def test_bad_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "texts.parquet"
    with pytest.raises(SwitchSDError, match="does not exist"):
        read_texts(file, 10)
    file.write_bytes(b"nonsense")
    with pytest.raises(SwitchSDError, match="damaged"):
        read_texts(file, 10)
    pd.DataFrame({"prompt_ids": [[1]]}).to_parquet(file)
    with pytest.raises(SwitchSDError, match="lacks completion_ids"):
        read_texts(file, 10)
    frame([]).to_parquet(file)
    with pytest.raises(SwitchSDError, match="holds no completions"):
        read_texts(file, 10)
    frame([[1, 10]]).to_parquet(file)
    with pytest.raises(SwitchSDError, match=r"token 10 .* another model"):
        read_texts(file, 10)


@pytest.mark.parametrize("value", ["text", None, [[1]], [1.5]])
def test_what_is_no_list_of_ids_is_named(tmp_path: Path, value: object) -> None:
    file = tmp_path / "texts.parquet"
    pd.DataFrame({"prompt_ids": [[1]], "completion_ids": [value]}).to_parquet(file)
    with pytest.raises(SwitchSDError, match="completion_ids has to hold lists of token ids"):
        read_texts(file, 10)
