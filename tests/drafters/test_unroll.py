"""Training sees what drafting computes: states, loss and accepted lengths, position by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.eagle3.head import Eagle3Head, fused_sites
from switchsd.decoding.eagle3.unroll import unroll
from switchsd.decoding.training.eagle3_task import Eagle3Task, frequent_tokens, warm_head
from switchsd.probing.lens import Lens
from tiny_training import RECIPE, eagle3_task, features, greedy_texts, taught
from torch import Tensor

Streams = dict[str, Tensor]


def streams_of(lens: Lens, ids: list[int], sites: tuple[str, ...]) -> Streams:
    found = lens.forward(torch.tensor([ids]), sites=tuple(dict.fromkeys(sites))).streams
    return {site: stream[0] for site, stream in found.items()}


@torch.no_grad()
def states_while_drafting(
    head: Eagle3Head, lens: Lens, ids: list[int], streams: Streams, slot: int, steps: int
) -> list[Tensor]:
    """What the head gives, through its cache, when it is made to draft the true tokens: first the
    pairs of positions 0 to `slot`, then its own states beside the tokens that follow."""
    sites = fused_sites(lens.n_layers, head.config.aux_layers)
    kv = lens.new_kv()
    feature = head.fuse(torch.cat([streams[site][: slot + 1] for site in sites], dim=-1))[None]
    states: list[Tensor] = []
    tokens = ids[1 : slot + 2]
    while True:
        past, new = kv.length, len(tokens)
        embedding = lens.model.get_input_embeddings()(torch.tensor([tokens]))
        attend = torch.ones(1, new, past + new, dtype=torch.bool).tril(past)
        positions = torch.arange(past, past + new)[None]
        feature = head(embedding, feature, positions, attend, kv)[:, -1:]
        states.append(feature[0, 0])
        tokens = ids[slot + 1 + len(states) : slot + 2 + len(states)]
        if len(states) == steps or not tokens:
            return states


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("normed", [False, True])
def test_step_k_is_where_the_head_stands_after_k_guesses(
    tiny: Callable[..., Lens], kind: str, normed: bool
) -> None:
    lens = tiny(kind, num_hidden_layers=6)
    texts = greedy_texts(lens, count=3, seed=2)
    lens.model.double()  # so that only a real difference is one
    ids = [[*p, *c] for p, c in zip(texts["prompt_ids"], texts["completion_ids"], strict=True)]
    torch.manual_seed(1)
    recipe = replace(RECIPE, aux_layers=(1, 3, 6))
    head = warm_head(lens, recipe, frequent_tokens(texts, 26, lens.d_vocab))
    head.double().midlayer.norm_before_residual = normed
    with torch.no_grad():
        for weight in head.parameters():  # far from where it starts: nothing is nearly zero
            weight += torch.randn_like(weight) * 0.2
    n_slots, steps = max(map(len, ids)) - 1, 5
    padded = torch.zeros(len(ids), n_slots + 1, dtype=torch.long)
    sites = fused_sites(lens.n_layers, recipe.aux_layers)
    fused = torch.zeros(len(ids), n_slots, 3 * lens.d_model, dtype=torch.float64)
    streams = [streams_of(lens, text, sites) for text in ids]
    for row, text in enumerate(ids):
        padded[row, : len(text)] = torch.tensor(text)
        fused[row, : len(text) - 1] = torch.cat([streams[row][site] for site in sites], -1)[:-1]
    kept = torch.stack([torch.randperm(n_slots)[: n_slots - 3].sort().values for _ in ids])
    with torch.no_grad():
        embedding = lens.model.get_input_embeddings()(padded[:, 1:])
        states = list(unroll(head, embedding, fused, steps, kept))
    assert states[0].shape[1] == n_slots
    assert all(state.shape[1] == kept.shape[1] for state in states[1:])
    compared = 0
    for row, text in enumerate(ids):
        for slot in range(len(text) - 1):
            truth = torch.stack(states_while_drafting(head, lens, text, streams[row], slot, steps))
            torch.testing.assert_close(states[0][row, slot], truth[0], atol=1e-9, rtol=1e-9)
            for at in (kept[row] == slot).nonzero().flatten().tolist():
                later = [states[step][row, at] for step in range(1, len(truth))]
                found = torch.stack([states[0][row, slot], *later])
                torch.testing.assert_close(found, truth, atol=1e-9, rtol=1e-9)
                compared += len(later)
    assert compared > 100


@pytest.fixture
def task(tiny: Callable[..., Lens], tmp_path: Path) -> Eagle3Task:
    lens = tiny("llama", num_hidden_layers=5)
    return eagle3_task(lens, features(lens, greedy_texts(lens), tmp_path / "store"))


def texts_of(task: Eagle3Task) -> list[tuple[list[int], list[int]]]:
    table = task.data.texts
    return [
        (list(p), list(c))
        for p, c in zip(table["prompt_ids"], table["completion_ids"], strict=True)
    ]


def test_held_out_figure_is_what_drafting_has_accepted(task: Eagle3Task) -> None:
    head, lens, gamma = taught(task), task.lens, 4
    hits, count = [0] * gamma, 0
    with torch.no_grad():
        for prompt, completion in texts_of(task):
            ids = prompt + completion
            streams = streams_of(
                lens, ids, fused_sites(lens.n_layers, RECIPE.fused_layers(lens.n_layers))
            )
            for anchor in range(len(prompt), len(ids) - 1):
                drafter = Eagle3(head, lens, gamma=gamma)
                drafter.absorb({site: stream[:anchor] for site, stream in streams.items()})
                drafted = drafter.propose(ids[: anchor + 1], gamma, None).tokens
                truth = ids[anchor + 1 : anchor + 1 + gamma]
                accepted = 0
                while accepted < len(truth) and drafted[accepted] == truth[accepted]:
                    accepted += 1
                count += 1
                for place in range(accepted):
                    hits[place] += 1
    shares = task.evaluate(range(len(task.data.texts)), gamma)
    assert shares == pytest.approx([hit / count for hit in hits], abs=1e-7)
    assert 0.3 < shares[0] < 1  # there is something to get wrong
    assert shares[0] > shares[-1] > 0


@pytest.mark.parametrize("prompt_share", [1.0, 0.0])
def test_loss_is_that_of_every_draft_the_head_could_make(
    task: Eagle3Task, prompt_share: float
) -> None:
    task = Eagle3Task(
        task.model, task.lens, task.data, replace(task.recipe, prompt_share=prompt_share)
    )
    head, lens, recipe = task.model, task.lens, task.recipe
    with torch.no_grad():
        for weight in head.parameters():
            weight += torch.randn(weight.shape) * 0.1
    vocabulary = head.target_ids
    drafted = set(vocabulary.tolist())
    rows = [0, 3, 7]
    losses: list[list[float]] = [[] for _ in range(recipe.steps)]
    for prompt, completion in [texts_of(task)[row] for row in rows]:
        ids = prompt + completion
        logits = lens.forward(torch.tensor([ids])).logits
        assert logits is not None
        target = logits[0][:, vocabulary].softmax(-1)
        streams = streams_of(
            lens, ids, fused_sites(lens.n_layers, RECIPE.fused_layers(lens.n_layers))
        )
        for slot in range(len(ids) - 2):
            states = states_while_drafting(head, lens, ids, streams, slot, recipe.steps)
            for step, state in enumerate(states):
                guessed = slot + 2 + step
                inside = guessed < len(ids) and ids[guessed] in drafted
                if not inside or (prompt_share == 0 and guessed < len(prompt)):
                    break  # nor is anything behind it learned from
                with torch.no_grad():
                    log_p = head.predict(state).log_softmax(-1)
                losses[step].append(-(target[guessed - 1] * log_p).sum().item())
    weights = [recipe.step_weight**step for step in range(recipe.steps)]
    expected = sum(
        weight * sum(part) / len(part) for weight, part in zip(weights, losses, strict=True)
    ) / sum(weights)
    assert task.loss(rows, seed=0).item() == pytest.approx(expected, rel=1e-4)


def test_loss_falls_and_acceptance_rises(task: Eagle3Task) -> None:
    rows = range(len(task.data.texts))
    before, start = task.loss(rows, seed=0).item(), sum(task.evaluate(rows))
    taught(task, steps=40)
    assert task.loss(rows, seed=0).item() < 0.8 * before
    assert sum(task.evaluate(rows)) > start


def test_a_share_of_the_slots_is_drawn_anew_each_time(task: Eagle3Task) -> None:
    some = Eagle3Task(task.model, task.lens, task.data, replace(task.recipe, kept=0.3))
    rows = range(4)
    values = {some.loss(rows, seed=seed).item() for seed in range(3)}
    assert len(values) == 3
    assert some.loss(rows, seed=1).item() in values


def test_vocabulary_is_the_completions_most_frequent_tokens(task: Eagle3Task) -> None:
    texts = task.data.texts
    fixed = texts.assign(completion_ids=[[5, 5, 9]] * len(texts))
    assert frequent_tokens(fixed, 1, 32).tolist() == [5]
    assert frequent_tokens(fixed, 2, 32).tolist() == [5, 9]
    (third,) = set(frequent_tokens(fixed, 3, 32).tolist()) - {5, 9}
    counts = texts["prompt_ids"].explode().value_counts().drop([5, 9], errors="ignore")
    assert counts[third] == counts.max()  # prompts break ties
    assert frequent_tokens(texts, 32, 32).tolist() == list(range(32))
