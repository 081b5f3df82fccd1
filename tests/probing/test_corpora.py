"""The corpora commands' functions: one schema, resumable, another corpus refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from switchsd import SwitchSDError
from switchsd.probing.corpora.build import (
    CONTEXT,
    build_benchmark,
    build_constructed_copy,
    build_copy_diversity,
    build_natural_text,
)
from switchsd.probing.corpora.token_table import label_table
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from tiny_models import tiny_model

COLUMNS = ["prompt_id", "family", "temperature", "seed", "prompt_ids", "completion_ids"]


@pytest.fixture(scope="module")
def small(tokenizer: Any) -> Lens:
    """A random-weight model with the default model's tokenizer."""
    model = tiny_model(
        "llama", vocab_size=len(tokenizer), max_position_embeddings=2048, hidden_size=16
    )
    return wrap(model, tokenizer, name="tiny")


def test_copy_diversity_has_both_temperatures_and_a_manifest(small: Lens, tmp_path: Path) -> None:
    corpus = build_copy_diversity(small, tmp_path / "c", n_prompts=6, max_new_tokens=5)
    assert list(corpus.columns) == COLUMNS
    assert sorted(corpus["temperature"].unique()) == [0.0, 0.8]
    assert corpus["prompt_id"].value_counts().eq(2).all()
    assert corpus["family"].nunique() == 6
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["seed"] == 0
    again = build_copy_diversity(small, tmp_path / "c", n_prompts=6, max_new_tokens=5)
    assert again["completion_ids"].map(list).tolist() == corpus["completion_ids"].map(list).tolist()
    with pytest.raises(SwitchSDError, match="another corpus"):
        build_copy_diversity(small, tmp_path / "c", n_prompts=6, max_new_tokens=5, seed=1)


def test_second_turns_follow_the_models_own_first_answers(small: Lens, tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    lines = [{"id": f"b/{i}", "turns": [f"Say {i}.", "Say it again."]} for i in range(2)]
    file.write_text("\n".join(map(json.dumps, lines)))
    corpus = build_benchmark(small, str(file), tmp_path / "b", n_prompts=2, max_new_tokens=6)
    assert list(corpus.columns) == COLUMNS
    assert corpus["prompt_id"].tolist() == ["b/0", "b/0", "b/1", "b/1"]  # resampled together
    for first in (0, 2):
        answer = small.tokenizer.decode(
            corpus["completion_ids"][first], skip_special_tokens=True
        ).strip()
        asked = small.tokenizer.decode(corpus["prompt_ids"][first + 1])
        assert answer in asked
        assert "Say it again." in asked
        assert "Say it again." not in small.tokenizer.decode(corpus["prompt_ids"][first])


def test_constructed_copy_labels_half_of_it(small: Lens, tmp_path: Path) -> None:
    corpus = build_constructed_copy(small, tmp_path / "c", n_tokens=3000)
    assert list(corpus.columns) == COLUMNS
    assert corpus["prompt_ids"].map(len).eq(CONTEXT).all()
    assert corpus["completion_ids"].map(len).sum() >= 3000
    assert 0.3 < label_table(corpus)["copied"].mean() < 0.7
    with pytest.raises(SwitchSDError, match="another corpus"):
        build_constructed_copy(small, tmp_path / "c", n_tokens=3001)


def test_natural_text_keeps_an_article_together(
    small: Lens, tmp_path: Path, shared_data: Path
) -> None:
    source = shared_data / "wikitext_test_raw.txt"
    corpus = build_natural_text(small, tmp_path / "n", source=source, n_tokens=40_000, length=256)
    assert list(corpus.columns) == COLUMNS
    assert corpus["completion_ids"].map(len).sum() == pytest.approx(40_000, rel=0.02)
    per_article = corpus["prompt_id"].value_counts()
    assert per_article.max() > 1
    assert 0 < label_table(corpus)["copied"].mean() < 0.3
    with pytest.raises(SwitchSDError, match="another corpus"):
        build_natural_text(small, tmp_path / "n", source=source, n_tokens=5000, length=256)


def test_a_folder_with_something_else_is_refused(small: Lens, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SwitchSDError, match="something else"):
        build_constructed_copy(small, tmp_path, n_tokens=500)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_unknown_benchmark_is_named(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    with pytest.raises(SwitchSDError, match="unknown benchmark"):
        build_benchmark(tiny("llama"), "humanevil", tmp_path / "x")
