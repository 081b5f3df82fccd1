"""An SPS draft learns from its target, can be interrupted, and its check is what drafting gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from switchsd import SwitchSDError
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafters.tied_draft import PartialUnembedding
from switchsd.decoding.training.eagle3_task import frequent_tokens
from switchsd.decoding.training.features import TextFeatures
from switchsd.decoding.training.loop import Schedule, train
from switchsd.decoding.training.sps_task import SpsRecipe, SpsTask, warm_draft
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from tiny_models import tiny_model
from tiny_training import features, greedy_texts
from tolerance import close, rounding

RECIPE = SpsRecipe(draft_vocab_size=26)
QUICK = Schedule(passes=6, batch_tokens=128, lr=3e-3, warmup=2, check_every=4, patience=99)


@pytest.fixture(scope="module")
def target(tiny: Callable[..., Lens]) -> Lens:
    return tiny("llama", num_hidden_layers=4, initializer_range=0.15)


@pytest.fixture(scope="module")
def data(target: Lens, tmp_path_factory: pytest.TempPathFactory) -> TextFeatures:
    folder = tmp_path_factory.mktemp("sps") / "features"
    return features(target, greedy_texts(target, count=24), folder)


def sps_task(lens: Lens, data: TextFeatures, recipe: SpsRecipe = RECIPE) -> SpsTask:
    vocabulary = frequent_tokens(data.texts, recipe.draft_vocab_size, lens.d_vocab)
    return SpsTask(warm_draft(lens, recipe, vocabulary), lens, data, recipe)


def decoding(task: SpsTask) -> DraftModel:
    return DraftModel(wrap(task.draft, name="draft"), task.lens, gamma=4)


def accepted_by_drafting(task: SpsTask, rows: list[int]) -> list[float]:
    """The check's figures by drafting at every position, as a decoder would."""
    hits, count = [0] * 4, 0
    for row in rows:
        prompt, completion = task.data.texts.loc[row, ["prompt_ids", "completion_ids"]]
        text = [*prompt, *completion]
        for known in range(len(prompt) + 1, len(text)):
            drafter = decoding(task)
            guesses = drafter.propose(text[:known], 99, None).tokens
            assert len(guesses) == 4
            count += 1
            for k, guess in enumerate(guesses):
                if known + k >= len(text) or guess != text[known + k]:
                    break
                hits[k] += 1
    return [hit / count for hit in hits]


def test_starts_from_the_targets_layers(target: Lens) -> None:
    draft: Any = warm_draft(target, RECIPE)
    theirs = target.model.model
    for mine, layer in ((0, 0), (1, 2)):
        expected = theirs.layers[layer].state_dict()
        found = draft.model.layers[mine].state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)
        weight = draft.model.layers[mine].self_attn.q_proj.weight
        assert weight.data_ptr() != theirs.layers[layer].self_attn.q_proj.weight.data_ptr()
    assert torch.equal(draft.model.norm.weight, theirs.norm.weight)
    # all of the target's layers: the target itself, rotary positions and heads included
    whole = warm_draft(target, SpsRecipe(layers=4, start=(0, 1, 2, 3)))
    ids = torch.arange(12)[None]
    close(whole(ids).logits, target.forward(ids).logits, length=4 * target.d_model)


@pytest.mark.parametrize("kind", ["llama-rope", "mistral"])
def test_what_else_is_like_a_llama(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    whole = warm_draft(lens, SpsRecipe(layers=3, start=(0, 1, 2)))
    ids = torch.arange(12)[None]  # no longer than Mistral's window
    close(whole(ids).logits, lens.forward(ids).logits, length=3 * lens.d_model)


@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "gpt2"])
def test_other_targets_lend_embeddings_only(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    drafts = []
    for _ in range(2):
        torch.manual_seed(4)
        drafts.append(warm_draft(lens, RECIPE))
    weight = drafts[0].model.embed_tokens.weight
    assert weight.data_ptr() == lens.model.get_input_embeddings().weight.data_ptr()
    mine, theirs = (draft.state_dict() for draft in drafts)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert drafts[0](torch.arange(9)[None]).logits.isfinite().all()


def test_embeddings_are_the_targets_and_frozen(target: Lens) -> None:
    draft: Any = warm_draft(target, RECIPE, torch.tensor([1, 4, 30]))
    pairs = (
        (draft.model.embed_tokens.weight, target.model.model.embed_tokens.weight),
        (draft.lm_head.weight, target.model.lm_head.weight),
    )
    for mine, theirs in pairs:
        assert mine.data_ptr() == theirs.data_ptr()
        assert not mine.requires_grad
        assert theirs.requires_grad  # the target is as it was
    logits = draft(torch.tensor([[5, 6, 7]])).logits[0]
    best = logits.topk(3).indices.sort().values
    assert best.tolist() == [[1, 4, 30]] * 3
    whole = warm_draft(target, RECIPE)(torch.tensor([[5, 6, 7]])).logits[0]
    close(logits[:, [1, 4, 30]], whole[:, [1, 4, 30]], length=target.d_model)


@pytest.mark.parametrize("size", [20, 64])
def test_another_mlp_width(tiny: Callable[..., Lens], size: int) -> None:
    target = tiny("llama", num_hidden_layers=4)
    with torch.no_grad():
        for layer in (target.model.model.layers[0], target.model.model.layers[2]):
            layer.mlp.up_proj.weight[:28] *= 0.0  # these neurons do nothing
    draft: Any = warm_draft(target, replace(RECIPE, intermediate_size=size))
    assert draft.model.layers[0].mlp.up_proj.weight.shape == (size, 32)
    x = torch.randn(1, 5, 32)
    mine, theirs = draft.model.layers[1].mlp(x), target.model.model.layers[2].mlp(x)
    bound = rounding(mine, theirs, length=48)  # neurons
    assert ((mine - theirs).detach().abs().max().item() <= bound) == (size == 20)


def test_targets_it_cannot_use_are_refused(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    for start in ((0,), (0, 3), (-1, 0)):
        with pytest.raises(SwitchSDError, match="name 2 of its layers 0-2"):
            warm_draft(lens, replace(RECIPE, start=start))
    model = tiny_model("llama")
    model.lm_head = torch.nn.Linear(32, 32, bias=True)
    with pytest.raises(SwitchSDError, match="unembedding has a bias"):
        warm_draft(wrap(model.eval()), RECIPE)
    model = tiny_model("llama")
    model.model.embed_tokens = torch.nn.Embedding(40, 32)
    with pytest.raises(SwitchSDError, match=r"embedding is \(40, 32\), not \(32, 32\)"):
        warm_draft(wrap(model.eval()), RECIPE)


def test_loss_is_the_mean_over_what_is_learned(target: Lens, data: TextFeatures) -> None:
    rows = [0, 5, 9]
    for share, common in ((1.0, 0), (0.0, 0), (1.0, 3)):
        task = sps_task(target, data, replace(RECIPE, prompt_share=share))
        task._common = common
        total, count = torch.zeros(()), 0
        for row in rows:
            prompt, completion = data.texts.loc[row, ["prompt_ids", "completion_ids"]]
            ids = torch.tensor([[*prompt, *completion]])
            scored = task._ids
            wanted = target.forward(ids).logits[0][:, scored].softmax(-1)
            found = task.draft(ids).logits[0][:, scored].log_softmax(-1)
            for pos in range(ids.shape[1] - 1):
                start = max(common, 0 if share else len(prompt))
                if pos + 1 >= start and ids[0, pos + 1] in scored:
                    total = total - (wanted[pos] * found[pos]).sum()
                    count += 1
        loss = task.loss(rows, seed=0)
        torch.testing.assert_close(loss, total / count, atol=1e-4, rtol=1e-4)
    task = sps_task(target, data, replace(RECIPE, prompt_share=0.5))
    losses = [task.loss(rows, seed=seed).item() for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_gradients_reach_the_layers_and_nothing_else(target: Lens, data: TextFeatures) -> None:
    task = sps_task(target, data)
    task.loss([0, 1], seed=0).backward()
    names = dict(task.model.named_parameters())
    assert len(names) == 2 * 9 + 1
    assert all(weight.grad is not None and weight.grad.any() for weight in names.values())
    own = sum(weight.numel() for weight in names.values())
    assert own == sum(w.numel() for w in task.draft.parameters() if w.requires_grad)
    assert target.model.lm_head.weight.grad is None


@pytest.mark.parametrize("size", [26, 32])
def test_learns_and_its_check_is_what_drafting_gives(
    target: Lens, data: TextFeatures, tmp_path: Path, size: int
) -> None:
    task = sps_task(target, data, replace(RECIPE, draft_vocab_size=size))
    held, rows = list(range(6)), list(range(6, 24))
    before = task.evaluate(held)
    assert before == pytest.approx(accepted_by_drafting(task, held), abs=1e-12)
    embeddings = target.model.model.embed_tokens.weight.clone()
    history = train(task, data.lengths, rows, held, replace(QUICK, passes=20), tmp_path)
    assert history[-1]["loss"] < history[0]["loss"] - 0.1
    after = task.evaluate(held)
    assert after == pytest.approx(accepted_by_drafting(task, held), abs=1e-12)
    assert 0 < after[3] < after[1] < after[0] < 1
    assert sum(after) == pytest.approx(max(check["accepted"] for check in history))
    assert sum(task.evaluate(rows)) > sum(sps_task(target, data).evaluate(rows)) + 0.2
    assert torch.equal(target.model.model.embed_tokens.weight, embeddings)
    assert not [name for name in load_file(tmp_path / "state.safetensors") if "embed" in name]


def test_check_does_not_depend_on_the_batch(target: Lens, data: TextFeatures) -> None:
    task = sps_task(target, data)
    rows = list(range(24))
    counts = [len(data.texts["completion_ids"].iat[row]) - 1 for row in rows]
    each = [task.evaluate([row]) for row in rows]
    for k, share in enumerate(task.evaluate(rows)):
        mean = sum(n * found[k] for n, found in zip(counts, each, strict=True)) / sum(counts)
        assert share == pytest.approx(mean, abs=1e-12)
    long = task.evaluate([0], gamma=60)  # longer than any text
    assert long[:4] == each[0]
    assert long[-1] == 0


def test_interrupted_training_ends_where_an_uninterrupted_one_does(
    target: Lens, data: TextFeatures, tmp_path: Path
) -> None:
    class InterruptedError(Exception):
        pass

    held, rows = list(range(6)), list(range(6, 24))
    whole = sps_task(target, data)
    train(whole, data.lengths, rows, held, QUICK, tmp_path / "whole")

    def stop(_: str, step: int, total: int) -> None:
        if step == total // 2 + 1:
            raise InterruptedError

    first = sps_task(target, data)
    with pytest.raises(InterruptedError):
        train(first, data.lengths, rows, held, QUICK, tmp_path / "parts", progress=stop)
    second = sps_task(target, data)
    train(second, data.lengths, rows, held, QUICK, tmp_path / "parts")
    for name in ("state.safetensors", "best.safetensors"):
        expected = load_file(tmp_path / "whole" / name)
        found = load_file(tmp_path / "parts" / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_trains_for_a_target_in_bfloat16(tmp_path: Path) -> None:
    lens = wrap(tiny_model("llama", initializer_range=0.15).to(torch.bfloat16), name="tiny")
    data = features(lens, greedy_texts(lens), tmp_path / "features")
    task = sps_task(lens, data)
    assert all(weight.dtype == torch.float32 for weight in task.model.parameters())
    assert isinstance(task.draft.lm_head, PartialUnembedding)
    assert task.draft.lm_head.rows.dtype == torch.bfloat16
    loss = task.loss(range(8), seed=0)
    loss.backward()
    assert loss.isfinite()
    assert all(weight.grad.dtype == torch.float32 for weight in task.model.parameters())
    shares = task.evaluate(range(8))
    assert len(shares) == 4
    assert shares == sorted(shares, reverse=True)
