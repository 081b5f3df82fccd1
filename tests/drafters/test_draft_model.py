"""SPS: exact with any draft, in step with the text after copies and rejections, one vocabulary."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sampled_exactness import check_exact
from switchsd import SwitchSDError
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.drafters.draft_model import DraftModel, check_vocabulary, shared_tokens
from switchsd.decoding.engine import generate
from switchsd.decoding.gates.gate import CopyGate, NeuralGate
from switchsd.decoding.policies import Policy
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.tree import DraftTree
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from tiny_models import tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]


def reference(lens: Lens, prompt: list[int], n: int, **kwargs: Any) -> list[int]:
    out = lens.model.generate(
        torch.tensor([prompt]), max_new_tokens=n, do_sample=False, pad_token_id=0, **kwargs
    )
    return out[0, len(prompt) :].tolist()


def near_copy(lens: Lens, kind: str, noise: float) -> Lens:
    """A draft that often agrees with the target and often does not: its weights, disturbed."""
    model = tiny_model(kind)
    model.load_state_dict(lens.model.state_dict())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            spread = noise * weight.std() if weight.numel() > 1 else 0.0
            weight += spread * torch.randn(weight.shape, generator=generator)
    return wrap(model, name="draft")


def fresh_chain(draft: Lens, committed: list[int], depth: int) -> list[int]:
    """What a draft without any cache would propose."""
    tokens: list[int] = []
    for _ in range(depth):
        logits = draft.forward(torch.tensor([[*committed, *tokens]]), logits="last").logits
        assert logits is not None
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


class Watched(DraftModel):
    """Checks each draft against one made from scratch, and counts forwarded tokens."""

    def reset(self) -> None:
        super().reset()
        self.forwarded: list[int] = []

    def propose(self, committed, limit, generator) -> DraftTree:
        tree = super().propose(committed, limit, generator)
        if generator is None and len(tree):
            assert list(tree.tokens) == fresh_chain(self.lens, committed, len(tree))
        return tree

    def _forward(self, missing):
        self.forwarded.append(len(missing))
        return super()._forward(missing)


@pytest.mark.parametrize("kind", ["llama", "llama-rope", "qwen3", "mistral", "gemma3", "gpt2"])
def test_is_token_exact_and_in_step_with_the_text(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    truth = reference(lens, PROMPT, 60)
    drafter = Watched(near_copy(lens, kind, 0.1), lens, gamma=4)
    partly = multiple = copied = 0
    for gate, copier in ((NeuralGate(), None), (CopyGate(), RecentCopier(W=2, D=6, n=1))):
        policy = Policy("sps", gate, copier, drafter)
        result = generate(lens, PROMPT, policy, max_new_tokens=60, eos_ids=())
        assert result.ids == truth
        steps = result.trace.steps
        neural = [s for s in steps if s.path == "neural"]
        partly += sum(0 < s.accepted < s.proposed for s in neural)
        multiple += sum(s.accepted > 1 for s in neural)
        copied += sum(s.path == "copy" and s.accepted > 0 for s in steps)
    assert partly, "no partial acceptance: nothing was rolled back"
    assert multiple, "no multi-token accept"
    assert copied, "no copy step in between: nothing to catch up with"


def test_catches_up_in_one_forward(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    drafter = Watched(tiny("llama", seed=5), lens, gamma=3)
    text = [int(t) for t in torch.randint(0, 32, (60,), generator=torch.Generator().manual_seed(2))]
    drafter.propose(text[:20], 9, None)
    assert drafter.forwarded == [20, 1, 1]  # the last drafted token is not fed back
    drafter.propose(text[:35], 9, None)  # 15 tokens were copied meanwhile
    kept = drafter.forwarded[3]
    assert drafter.forwarded[4:] == [1, 1]
    assert 13 <= kept <= 15  # less what happened to be drafted right
    # everything it drafted was accepted: only its last token and the bonus are new to it
    tree = drafter.propose(text[:40], 9, None)
    before = len(drafter.forwarded)
    drafter.propose([*text[:40], *tree.tokens, 7], 9, None)
    assert drafter.forwarded[before] == 2
    # a text it has seen in full still gives it one token to predict from
    before = len(drafter.forwarded)
    again = drafter.propose([*text[:40], *tree.tokens, 7], 9, None)
    assert drafter.forwarded[before] == 1
    assert list(again.tokens) == fresh_chain(drafter.lens, [*text[:40], *tree.tokens, 7], 3)


def test_drafts_no_deeper_than_asked(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    drafter = DraftModel(tiny("llama", seed=5), lens, gamma=5)
    assert [len(drafter.propose(PROMPT, limit, None)) for limit in (0, 1, 3, 9)] == [0, 1, 3, 5]


def test_takes_a_bare_hugging_face_model(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    drafter = DraftModel(tiny_model("gpt2", seed=5), lens)
    policy = Policy("sps", NeuralGate(), None, drafter)
    got = generate(lens, PROMPT, policy, max_new_tokens=20, eos_ids=())
    assert got.ids == reference(lens, PROMPT, 20)


def test_repetition_penalty_reaches_the_draft(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    settings = Sampling(repetition_penalty=1.3)
    truth = reference(lens, PROMPT, 40, repetition_penalty=1.3)
    forwards = []
    for own in (settings, None, Sampling()):  # without its own it follows the target's
        drafter = DraftModel(lens, lens, gamma=4, sampling=own)  # the target drafts for itself
        policy = Policy("sps", NeuralGate(), None, drafter)
        got = generate(lens, PROMPT, policy, max_new_tokens=40, eos_ids=(), sampling=settings)
        assert got.ids == truth
        forwards.append(len(got.trace.steps))
    assert forwards[:2] == [8, 8]  # every draft was accepted in full
    assert forwards[2] > 8


SAMPLED = {
    "temperature 1": Sampling(temperature=1.0),
    "top-p, top-k, penalty": Sampling(temperature=0.8, top_k=3, top_p=0.9, repetition_penalty=1.2),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("top-p, top-k, penalty", "as the target"),
        ("temperature 1", "otherwise"),
        pytest.param("temperature 1", "as the target", marks=pytest.mark.slow),
        pytest.param("top-p, top-k, penalty", "otherwise", marks=pytest.mark.slow),
    ],
)
def test_sampled_outputs_have_the_targets_distribution(
    tiny: Callable[..., Lens], name: str, drawn: str
) -> None:
    lens = tiny("llama", vocab_size=4, num_hidden_layers=1)
    draft = tiny("llama", vocab_size=4, num_hidden_layers=1, seed=9)
    own = SAMPLED[name] if drawn == "as the target" else Sampling(temperature=2.5)

    def make(sampling: Sampling) -> Policy:
        return Policy("sps", NeuralGate(), None, DraftModel(draft, lens, gamma=2, sampling=own))

    distance, chance = check_exact(lens, [1, 2, 0, 1], SAMPLED[name], make)
    assert distance <= chance


@pytest.mark.long
def test_sampled_outputs_stay_exact_between_copies(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama", vocab_size=4, num_hidden_layers=1)
    draft = tiny("llama", vocab_size=4, num_hidden_layers=1, seed=9)

    def make(sampling: Sampling) -> Policy:
        drafter = DraftModel(draft, lens, gamma=2, sampling=sampling)
        return Policy("mixed", CopyGate(), RecentCopier(W=2, D=2, n=2), drafter)

    distance, chance = check_exact(lens, [1, 2, 0, 1], Sampling(temperature=1.0), make)
    assert distance <= chance


@pytest.mark.long
def test_the_check_sees_a_draft_that_lies_about_q(tiny: Callable[..., Lens]) -> None:
    class Liar(DraftModel):
        def propose(self, committed, limit, generator) -> DraftTree:
            tree = super().propose(committed, limit, generator)
            return replace(tree, q=torch.full_like(tree.q, 0.25)) if len(tree) else tree

    lens = tiny("llama", vocab_size=4, num_hidden_layers=1)
    draft = tiny("llama", vocab_size=4, num_hidden_layers=1, seed=9)

    def make(sampling: Sampling) -> Policy:
        return Policy("liar", NeuralGate(), None, Liar(draft, lens, gamma=2))

    distance, chance = check_exact(lens, [1, 2, 0, 1], Sampling(temperature=1.0), make, samples=600)
    assert distance > chance


class Tokens:
    """As much of a tokenizer as the check needs."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


def with_tokens(lens: Lens, count: int) -> Lens:
    lens.tokenizer = Tokens([f"t{i}" for i in range(count)])
    return lens


@pytest.mark.parametrize(("target_size", "draft_size"), [(40, 32), (32, 40), (32, 32)])
def test_padded_vocabularies_draft_shared_tokens_only(
    tiny: Callable[..., Lens], target_size: int, draft_size: int
) -> None:
    target = with_tokens(tiny("llama", vocab_size=target_size), 30)
    draft = with_tokens(tiny("llama", vocab_size=draft_size, seed=5), 30)
    drafter = DraftModel(draft, target, gamma=5)
    assert int(shared_tokens(target, draft).sum()) == 30
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        drafter.reset()
        tree = drafter.propose(PROMPT, 9, generator)
        assert tree.q is not None
        assert tree.q.shape == (5, target_size)
        assert tree.q[:, :30].sum(-1).tolist() == pytest.approx([1.0] * 5)
        assert max(tree.tokens) < 30
    # beside the mask: the row is the draft's own, at the same ids
    logits = draft.forward(torch.tensor([PROMPT]), logits="last").logits
    assert logits is not None
    drafter.reset()
    tree = drafter.propose(PROMPT, 1, generator)
    assert tree.q is not None
    expected = torch.softmax(logits[0, -1, :30].double(), -1)
    torch.testing.assert_close(tree.q[0, :30], expected, atol=1e-5, rtol=1e-4)


def test_another_vocabulary_is_refused(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    same = ["a", "b", "c", "d"]
    check_vocabulary(Tokens(same), Tokens([*same, "only the draft's"]))
    for other in (["a", "b", "x", "d"], ["a", "b"], ["b", "a", "c", "d"]):
        with pytest.raises(SwitchSDError, match="another vocabulary"):
            check_vocabulary(Tokens(same), Tokens(other))
    with pytest.raises(SwitchSDError, match=r"1 of the target's 4 tokens differ .*2: 'c' / 'x'"):
        check_vocabulary(Tokens(same), Tokens(["a", "b", "x", "d"]))
    with pytest.raises(SwitchSDError, match="40 ids and the target 32"):
        DraftModel(tiny("llama", vocab_size=40), lens)
    with pytest.raises(SwitchSDError, match="gamma = 0"):
        DraftModel(lens, lens, gamma=0)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_beyond_the_drafts_context_the_target_goes_on_alone(
    tiny: Callable[..., Lens], kind: str
) -> None:
    lens = tiny("llama")
    if kind == "gpt2":  # learned positions: one too many is an error, not a bad guess
        config = tiny_model("gpt2").config
        config.n_positions = 24
        draft = wrap(type(tiny_model("gpt2"))(config).eval())
    else:
        draft = tiny("llama", max_position_embeddings=24)
    assert draft.n_ctx == 24
    drafter = DraftModel(draft, lens, gamma=5)
    # 24 positions predict the token at 24 and none beyond it
    assert [len(drafter.propose([1] * n, 9, None)) for n in (19, 20, 23, 24)] == [5, 5, 2, 1]
    policy = Policy("sps", NeuralGate(), None, drafter)
    with pytest.warns(UserWarning, match="outgrown the context") as caught:
        got = generate(lens, PROMPT, policy, max_new_tokens=40, eos_ids=())
    assert len([w for w in caught if "outgrown" in str(w.message)]) == 1
    assert got.ids == reference(lens, PROMPT, 40)
    assert max(s.position + s.proposed for s in got.trace.steps if s.proposed) <= 25


def test_a_token_the_draft_cannot_embed(tiny: Callable[..., Lens]) -> None:
    target = with_tokens(tiny("llama", vocab_size=40), 32)
    drafter = DraftModel(with_tokens(tiny("llama", seed=5), 32), target, gamma=3)
    with pytest.warns(UserWarning, match="no embedding"):
        assert not len(drafter.propose([1, 2, 35], 9, None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not len(drafter.propose([1, 2, 35, 4], 9, None))
    drafter.reset()
    assert len(drafter.propose([1, 2, 3], 9, None)) == 3
