"""From prompts to labelled activations: batches, resuming, and rows that are what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.data.chat import special_ids
from switchsd.probing.activations.capture import capture, captured_positions, planned_store_bytes
from switchsd.probing.corpora import completions
from switchsd.probing.corpora.completions import build_corpus, complete
from switchsd.probing.corpora.token_table import label_table
from switchsd.probing.lens import Lens
from switchsd.probing.training.probing_set import probe_data
from tolerance import close

SITES = ["blocks.0.hook_resid_mid", "blocks.2.attn.hook_z"]


def corpus_of(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        prompt = rng.integers(3, 32, rng.integers(1, 12)).tolist()
        completion = rng.integers(3, 8, rng.integers(6, 30)).tolist()
        rows.append((f"p{i // 2}", f"f{(i // 2) % 2}", 0.0, 0, prompt, completion))
    names = ["prompt_id", "family", "temperature", "seed", "prompt_ids", "completion_ids"]
    return pd.DataFrame(rows, columns=names)


def test_batched_completion_equals_one_by_one(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    prompts = [[3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1], [11]]
    got: dict[int, list[int]] = {}
    for indices, answers in complete(lens, prompts, max_new_tokens=12, batch_size=2):
        got |= dict(zip(indices, answers, strict=True))
    for i, prompt in enumerate(prompts):
        alone = lens.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert got[i] == alone


def test_completion_refuses_what_does_not_fit(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    with pytest.raises(SwitchSDError, match="empty"):
        list(complete(lens, [[]], max_new_tokens=4))
    with pytest.raises(SwitchSDError, match="context"):
        list(complete(lens, [[1] * 250], max_new_tokens=10))


@pytest.mark.parametrize("whole", [False, True])
def test_store_rows_are_the_streams_at_their_positions(
    tiny: Callable[..., Lens], tmp_path: Path, whole: bool
) -> None:
    lens, corpus = tiny("llama"), corpus_of(9)
    store = capture(lens, corpus, SITES, tmp_path / "s", store_dtype="float32", whole=whole)
    columns = store.columns()
    assert store.n_rows == sum(
        len(p) + len(c) if whole else len(captured_positions(len(p), len(p) + len(c)))
        for p, c in zip(corpus["prompt_ids"], corpus["completion_ids"], strict=True)
    )
    for site in SITES:
        X = store.read(site)
        for row in range(len(corpus)):
            ids = [*corpus["prompt_ids"][row], *corpus["completion_ids"][row]]
            streams = lens.forward(torch.tensor([ids]), sites=[site]).streams[site][0]
            mine = np.flatnonzero(columns["row"] == row)
            positions = columns["position"].to_numpy()[mine]
            expected = streams[positions].flatten(1)
            close(X[mine], expected, length=3 * lens.d_model)  # batched there, alone here
    planned = planned_store_bytes(lens, corpus, SITES, "float32", whole=whole)
    assert planned == store.n_rows * 2 * 32 * 4
    again = capture(lens, corpus, SITES, tmp_path / "s", store_dtype="float32", whole=whole)
    assert again.n_rows == store.n_rows
    fewer = capture(lens, corpus, SITES[:1], tmp_path / "s", store_dtype="float32", whole=whole)
    assert torch.equal(fewer.read(SITES[0]), store.read(SITES[0]))  # read back, not computed
    with pytest.raises(SwitchSDError, match="rows"):
        capture(lens, corpus, SITES, tmp_path / "s", store_dtype="float32", whole=not whole)


def test_capture_of_another_corpus_or_model_is_refused(
    tiny: Callable[..., Lens], tmp_path: Path
) -> None:
    lens = tiny("llama")
    capture(lens, corpus_of(4), SITES, tmp_path / "s")
    for other, corpus in ((lens, corpus_of(4, seed=1)), (tiny("llama", seed=2), corpus_of(4))):
        with pytest.raises(SwitchSDError):
            capture(other, corpus, SITES, tmp_path / "s")
    with pytest.raises(SwitchSDError, match="layers"):
        capture(lens, corpus_of(4), ["blocks.9.hook_resid_mid"], tmp_path / "t")


def test_interrupted_capture_goes_on(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens, corpus = tiny("llama"), corpus_of(12)
    small = 40 * 2 * 32 * 4  # a buffer of 40 rows, so several batches and shards

    def stop_early(what: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(lens, corpus, SITES, tmp_path / "s", buffer_bytes=small, progress=stop_early)
    seen: list[int] = []
    store = capture(
        lens, corpus, SITES, tmp_path / "s", buffer_bytes=small,
        progress=lambda what, done, total: seen.append(done),
    )  # fmt: skip
    assert seen[0] > store.n_rows // 2  # it did not start again
    fresh = capture(lens, corpus, SITES, tmp_path / "fresh", buffer_bytes=small)
    by = ["row", "position"]
    a, b = store.columns().sort_values(by), fresh.columns().sort_values(by)
    assert a[by].to_numpy().tolist() == b[by].to_numpy().tolist()
    for site in SITES:
        x = store.read(site, a.index.to_numpy())
        # float16, and batches of other shapes round differently
        assert torch.allclose(x, fresh.read(site, b.index.to_numpy()), atol=2e-2)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_label_offset_asks_for_the_token_so_far_ahead(
    tiny: Callable[..., Lens], tmp_path: Path, offset: int
) -> None:
    """Activations that name their own token must predict the token `offset` further on."""
    lens, corpus = tiny("llama"), corpus_of(9)
    store = capture(lens, corpus, SITES, tmp_path / "s")
    labels = label_table(corpus, n_train=2, breaks={3})
    columns = store.columns()
    data = probe_data(columns, labels, offset=offset)
    index, tokens = data.index, data.tokens
    assert len(tokens) > 40
    assert not (tokens["id"] == 3).any()
    for at, row, position in zip(index, tokens["row"], tokens["position"], strict=True):
        assert columns["row"][at] == row
        assert columns["position"][at] == position - offset
    parts = [set(data.groups[part]) for part in (data.train, data.valid, data.test)]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]


def test_labels_cover_every_new_token_but_the_special_ones() -> None:
    corpus = pd.DataFrame(
        {
            "prompt_id": ["a"],
            "family": ["f"],
            "prompt_ids": [[5, 6, 7, 8]],
            "completion_ids": [[5, 6, 7, 9, 1, 1, 1, 1]],
        }
    )
    table = label_table(corpus, n_train=3, breaks={9})
    assert table["position"].tolist() == [4, 5, 6, 8, 9, 10, 11]
    assert table["copied"].tolist() == [True] * 3 + [False] * 1 + [True] * 3
    assert table["source"].tolist()[:3] == [0, 1, 2]
    assert table["in_loop"].tolist() == [False] * 3 + [True] * 4
    with pytest.raises(SwitchSDError, match="no completion"):
        label_table(corpus.assign(completion_ids=[[]]))


@pytest.mark.model
def test_corpus_is_resumed_and_uses_the_models_own_answers(lens: Lens, tmp_path: Path) -> None:
    prompts = pd.DataFrame(
        {
            "prompt_id": ["a", "b", "c"],
            "family": ["x", "x", "y"],
            "turns": [["Say hello."], ["Name a colour.", "Repeat it."], ["Count to three."]],
        }
    )
    calls = 0
    run = completions._complete_batch

    def counting(*args):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return run(*args)

    settings = {"max_new_tokens": 8, "temperatures": (0.0, 0.8), "batch_size": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "_complete_batch", counting)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(lens, prompts, tmp_path / "c", **settings)
        corpus = build_corpus(lens, prompts, tmp_path / "c", **settings)
    interrupted = calls
    straight = build_corpus(lens, prompts, tmp_path / "d", **settings)
    assert interrupted == 6 + 1  # two batches and one a temperature, one of them begun twice
    pd.testing.assert_frame_equal(corpus, straight)
    greedy = corpus[corpus["temperature"] == 0]
    assert greedy["prompt_id"].tolist() == ["a", "b", "c"]
    assert len(corpus) == 6
    second = lens.tokenizer.decode(greedy["prompt_ids"].iloc[1])
    assert (
        second.index("Name a colour.")
        < second.index("im_start|>assistant")
        < second.index("Repeat it.")
    )
    labels = label_table(corpus, breaks=special_ids(lens.tokenizer))
    assert not labels["id"].isin(special_ids(lens.tokenizer)).any()
    with pytest.raises(SwitchSDError, match="another corpus"):
        build_corpus(lens, prompts, tmp_path / "c", max_new_tokens=9)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("keep me")
    with pytest.raises(SwitchSDError, match="something else"):
        build_corpus(lens, prompts, tmp_path / "e", **settings)
    assert (tmp_path / "e" / "mine.txt").read_text() == "keep me"
