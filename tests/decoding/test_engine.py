"""The decode loop: every policy gives the target's own greedy text, cut where it should be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafters.drafter import Drafter
from switchsd.decoding.engine import Decoding, generate
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.gates.gate import NeuralGate, ProbeGate
from switchsd.decoding.policies import POLICIES, Options, Policy
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.tree import DraftTree
from switchsd.probing.lens import Lens
from tiny_models import policy_for, probe_for

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]
KINDS = ["llama", "llama-rope", "qwen3", "mistral", "gemma3", "gpt2"]


def reference(lens: Lens, prompt: list[int], n: int, **kwargs) -> list[int]:
    out = lens.model.generate(
        torch.tensor([prompt]), max_new_tokens=n, do_sample=False, pad_token_id=0, **kwargs
    )
    return out[0, len(prompt) :].tolist()


class WrongThenRight(Drafter):
    """A drafter whose tree holds the greedy text behind a wrong first branch."""

    depth = 4

    def __init__(self, truth: list[int], prompt: int, vocab: int) -> None:
        self.truth, self.prompt, self.vocab = truth, prompt, vocab

    def propose(self, committed, limit, generator) -> DraftTree:
        rest = self.truth[len(committed) - self.prompt :][: min(limit, 4)]
        wrong = [(t + 1) % self.vocab for t in rest]
        return DraftTree.merge([wrong, rest[:1] + wrong[1:], rest])


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_is_token_exact(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    draft = noisy_copy(lens)
    truth = reference(lens, PROMPT, 60)
    accepted = rejected = 0
    for name in POLICIES:
        copies = name not in ("vanilla", "sps", "eagle3", "eagle3-tree")  # others: all settings one
        for W, D, n in ((1, 10, 3), (4, 20, 1), (4, 1, 2))[: 3 if copies else 1]:
            policy = policy_for(name, lens, draft, W=W, D=D, n=n)
            result = generate(lens, PROMPT, policy, max_new_tokens=60, eos_ids=())
            assert result.ids == truth, (name, W, D, n)
            steps = result.trace.steps
            assert sum(s.emitted for s in steps) == 60
            accepted += sum(s.accepted > 1 for s in steps)
            rejected += sum(0 < s.accepted < s.proposed for s in steps)
    assert accepted, "no multi-token accept: the check proves nothing"
    assert rejected, "no rejection inside a block: the check proves nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_accepted_path_that_is_not_first_is_gathered(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    truth = reference(lens, PROMPT, 40)
    neural = WrongThenRight(truth, len(PROMPT), lens.d_vocab)
    policy = Policy("planted", ProbeGate(1.0), None, neural)
    result = generate(lens, PROMPT, policy, max_new_tokens=40, eos_ids=())
    assert result.ids == truth
    assert max(s.accepted for s in result.trace.steps) == 4


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_bridge_backend_gives_the_same_tokens_and_scores(
    tiny: Callable[..., Lens], kind: str
) -> None:
    live, bridge = tiny(kind), tiny(kind, backend="bridge")
    for policy in ("pld", "switchsd"):
        a, b = (
            generate(
                lens, PROMPT, policy, options=Options(W=4, n=1, probe=probe_for(lens)),
                max_new_tokens=40, eos_ids=(),
            )
            for lens in (live, bridge)
        )  # fmt: skip
        assert a.ids == b.ids
        assert a.trace.scores == pytest.approx(b.trace.scores, abs=1e-4)
        assert [s.path for s in a.trace.steps] == [s.path for s in b.trace.steps]


def test_score_is_that_of_an_uncached_forward(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    probe = probe_for(lens)
    result = generate(
        lens, PROMPT, "switchsd", options=Options(W=4, n=1, probe=probe), max_new_tokens=30,
        eos_ids=(),
    )  # fmt: skip
    ids = torch.tensor([PROMPT + result.ids])
    streams = lens.forward(ids, sites=[probe.site]).streams[probe.site][0]
    expected = probe.score(streams).tolist()
    got = result.trace.scores
    assert got == pytest.approx(expected[: len(got)], abs=1e-4)
    for step in result.trace.steps:
        # the gate saw the newest processed position, the one before the anchor
        assert step.score == pytest.approx(expected[step.position - 2], abs=1e-4)
    tokens = result.trace.tokens_frame()
    assert tokens["score"][20] == pytest.approx(expected[19], abs=1e-4)  # label offset 1


def test_copied_tokens_equal_their_source(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    result = generate(
        lens, PROMPT, "switchsd", options=Options(W=4, n=1, D=20, probe=probe_for(lens, 9.0)),
        max_new_tokens=60, eos_ids=(),
    )  # fmt: skip
    frame = result.trace.tokens_frame()
    ids = frame["id"].tolist()
    copied = frame[frame["path"] == "copy"]
    assert len(copied) > 5
    for position, source in zip(copied["position"], copied["source"], strict=True):
        assert 0 <= source < position
        assert ids[source] == ids[position]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_ends_at_eos_and_at_the_budget(tiny: Callable[..., Lens], policy: str) -> None:
    lens = tiny("llama")
    policy = policy_for(policy, lens, noisy_copy(lens), n=1, D=20)
    truth = reference(lens, PROMPT, 60)
    for budget in (1, 2, 3, 7, 23):
        got = generate(lens, PROMPT, policy, max_new_tokens=budget, eos_ids=())
        assert got.ids == truth[:budget]
        assert got.trace.finish == "length"
    for eos in {truth[0], truth[9], truth[30]}:
        got = generate(lens, PROMPT, policy, max_new_tokens=60, eos_ids=(eos, 31))
        first = min(truth.index(e) for e in (eos, 31) if e in truth)
        assert got.ids == truth[: first + 1]
        assert got.trace.finish == "eos"
        assert got.trace.generated == got.ids


@pytest.mark.parametrize("length", range(30, 39))
def test_the_context_ends_where_it_does_without_a_draft(
    tiny: Callable[..., Lens], length: int
) -> None:
    lens = tiny("llama", max_position_embeddings=40)
    prompt = [3 + i % 7 for i in range(length)]
    whole = generate(lens, prompt, "vanilla", max_new_tokens=64, eos_ids=())
    assert len(prompt) + len(whole.ids) == 40
    perfect = DraftModel(noisy_copy(lens, noise=0.0), lens, gamma=4)  # always accepted
    drafted = generate(
        lens, prompt, Policy("sps", NeuralGate(), None, perfect), max_new_tokens=64, eos_ids=()
    )
    assert drafted.ids == whole.ids
    assert drafted.trace.finish == whole.trace.finish == "context"


def test_context_limit_is_reached_cleanly(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama", max_position_embeddings=40)
    truth = reference(lens, PROMPT, 27)
    draft = noisy_copy(lens)
    for name in POLICIES:
        policy = policy_for(name, lens, draft, n=1, D=20)
        got = generate(lens, PROMPT, policy, max_new_tokens=100, eos_ids=())
        assert got.trace.finish == "context"
        assert got.ids == truth


def test_single_token_prompt(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    options = Options(n=1, probe=probe_for(lens, 9.0))
    assert generate(
        lens, [5], "switchsd", options=options, max_new_tokens=20, eos_ids=()
    ).ids == reference(lens, [5], 20)


def test_repetition_penalty_equals_transformers(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    truth = reference(lens, PROMPT, 40, repetition_penalty=1.3)
    draft = noisy_copy(lens)
    for name in POLICIES:
        policy = policy_for(name, lens, draft, n=1, W=4, D=20)
        got = generate(
            lens, PROMPT, policy, max_new_tokens=40, eos_ids=(),
            sampling=Sampling(repetition_penalty=1.3),
        )  # fmt: skip
        assert got.ids == truth


def test_same_seed_same_text_other_seed_another(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    options = Options(n=1, W=4, probe=probe_for(lens, 9.0))

    def text(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return generate(
            lens, PROMPT, "switchsd", options=options, max_new_tokens=40, eos_ids=(),
            sampling=sampling,
        ).ids  # fmt: skip

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_steps_come_as_they_are_committed(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    decoding = Decoding(lens, PROMPT, "pld", max_new_tokens=20, eos_ids=())
    seen: list[int] = []
    for step in decoding.steps():
        seen += step.tokens
        assert decoding.committed == PROMPT + seen
    assert seen == reference(lens, PROMPT, 20)


def test_bad_input_is_named(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    other = tiny("llama", seed=5)
    for message, call in {
        "empty": lambda: generate(lens, []),
        "context": lambda: generate(lens, [1] * 256),
        "vocabulary": lambda: generate(lens, [1, 99]),
        "at least one token": lambda: generate(lens, [1], max_new_tokens=0),
        "unknown policy": lambda: generate(lens, [1], "nope"),
        "needs a probe": lambda: generate(lens, [1], "switchsd"),
        "W = 0": lambda: generate(
            lens, [1], "switchsd", options=Options(W=0, probe=probe_for(lens))
        ),
        "trained on": lambda: generate(
            lens, [1], "switchsd", options=Options(probe=probe_for(other))
        ),
        "tau": lambda: generate(
            lens, [1], "switchsd", options=Options(tau=1.5, probe=probe_for(lens))
        ),
        "temperature": lambda: Sampling(temperature=-1),
        "top_p": lambda: Sampling(top_p=0),
        "tokenizer": lambda: generate(lens, "text"),
    }.items():
        with pytest.raises(SwitchSDError, match=message):
            call()
