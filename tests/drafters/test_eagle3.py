"""EAGLE-3 drafting: the published shape, in step with the text, exact with any head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sampled_exactness import check_exact
from switchsd import SwitchSDError
from switchsd.decoding.drafters.copy import RecentCopier
from switchsd.decoding.eagle3.drafter import Eagle3, TreeShape
from switchsd.decoding.eagle3.head import Eagle3Config, Eagle3Head, fused_sites, random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.gates.gate import CopyGate, NeuralGate
from switchsd.decoding.policies import Policy
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.tree import ANCHOR, DraftTree
from switchsd.probing.lens import Lens
from torch import Tensor

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]
KINDS = ["llama", "qwen3", "gemma3", "gpt2"]


def reference(lens: Lens, prompt: list[int], n: int) -> list[int]:
    out = lens.model.generate(
        torch.tensor([prompt]), max_new_tokens=n, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def target_features(lens: Lens, head: Eagle3Head, ids: list[int]) -> Tensor:
    """Fused features of every position, from one forward without a cache."""
    sites = fused_sites(lens.n_layers, head.config.aux_layers)
    streams = lens.forward(torch.tensor([ids]), sites=tuple(dict.fromkeys(sites))).streams
    return head.fuse(torch.cat([streams[site][0] for site in sites], dim=-1))


def causal(head: Eagle3Head, lens: Lens, tokens: list[int], features: Tensor) -> Tensor:
    """The head over all pairs at once, without a cache."""
    n = len(tokens)
    embedding = lens.model.get_input_embeddings()(torch.tensor([tokens]))
    attend = torch.ones(1, n, n, dtype=torch.bool).tril()
    return head(embedding, features[None], torch.arange(n)[None], attend)[0]


def from_scratch(lens: Lens, head: Eagle3Head, committed: list[int], path: list[int]) -> Tensor:
    """The feature behind the last token of `path`, drafted after `committed`."""
    with torch.no_grad():
        features = target_features(lens, head, committed)[:-1]
        for end in range(len(path) + 1):
            out = causal(head, lens, [*committed[1:], *path[:end]], features)
            features = torch.cat([features, out[-1:]])
    return features[-1]


def likeliest(head: Eagle3Head, feature: Tensor, k: int) -> list[tuple[int, float]]:
    with torch.no_grad():
        top = head.predict(feature).log_softmax(-1).topk(k)
    return list(zip(head.target_ids[top.indices].tolist(), top.values.tolist(), strict=True))


def chain_from_scratch(lens: Lens, head: Eagle3Head, ids: list[int], depth: int) -> list[int]:
    path: list[int] = []
    while len(path) < depth:
        path.append(likeliest(head, from_scratch(lens, head, ids, path), 1)[0][0])
    return path


def tree_from_scratch(
    lens: Lens, head: Eagle3Head, ids: list[int], levels: int, shape: TreeShape
) -> set[tuple[int, ...]]:
    """The paths of the tree, grown path by path without cache or mask."""
    everything: dict[tuple[int, ...], float] = {}
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(levels):
        below = {
            (*path, token): score + log_p
            for path, score in frontier.items()
            for token, log_p in likeliest(
                head, from_scratch(lens, head, ids, list(path)), shape.top_k
            )
        }
        everything |= below
        frontier = dict(sorted(below.items(), key=lambda item: -item[1])[: shape.top_k])
    best = sorted(everything, key=lambda path: -everything[path])
    return set(best[: shape.total - 1])


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for node, parent in enumerate(tree.parents):
        found.append((*(() if parent == ANCHOR else found[parent]), tree.tokens[node]))
    return found


def fitted_head(lens: Lens, ids: list[int], **options: Any) -> Eagle3Head:
    """A head trained a moment on one text: feature i and token i + 1 predict token i + 2."""
    head = random_head(lens, std=0.1, **options)
    if head.d2t is not None:
        head.set_vocabulary(torch.tensor(sorted({*ids, *range(32)})[: len(head.target_ids)]))
    index = {token: place for place, token in enumerate(head.target_ids.tolist())}
    wanted = torch.tensor([index.get(token, -100) for token in ids[2:]])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(60):
        features = target_features(lens, head, ids)[:-2].clone()
        out = head.predict(causal(head, lens, ids[1:-1], features))
        loss = torch.nn.functional.cross_entropy(out, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


class Watched(Eagle3):
    """Checks what it kept, and each draft, against one rebuilt from scratch."""

    checked = 0

    def propose(self, committed, limit, generator) -> DraftTree:
        tree = super().propose(committed, limit, generator)
        if generator is None and len(tree):
            truth = from_scratch(self.lens, self.head, committed, [])
            torch.testing.assert_close(self._newest[0], truth, atol=1e-9, rtol=1e-9)
            assert self._kv.length == len(committed) - 1
            if self.tree is None:
                depth = min(self.gamma, limit)
                expected = chain_from_scratch(self.lens, self.head, committed, depth)
                assert list(tree.tokens) == expected
            type(self).checked += 1
        return tree


@pytest.mark.parametrize("kind", KINDS)
def test_is_token_exact_and_in_step_with_the_text(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    lens.model.double()  # so that only a real difference is one
    truth = reference(lens, PROMPT, 60)
    head = fitted_head(lens, PROMPT + truth[:40])
    partly = multiple = copied = 0
    Watched.checked = 0
    for tree in (None, TreeShape(20, 3, 4)):
        drafter = Watched(head, lens, gamma=4, tree=tree)
        for gate, copier in ((NeuralGate(), None), (CopyGate(), RecentCopier(W=2, D=6, n=1))):
            policy = Policy("eagle3", gate, copier, drafter)
            result = generate(lens, PROMPT, policy, max_new_tokens=60, eos_ids=())
            assert result.ids == truth
            steps = result.trace.steps
            neural = [s for s in steps if s.path == "neural"]
            partly += sum(0 < s.accepted < s.proposed for s in neural)
            multiple += sum(s.accepted > 1 for s in neural)
            copied += sum(s.path == "copy" and s.accepted > 0 for s in steps)
    assert partly, "no partial acceptance"
    assert multiple, "no multi-token accept"
    assert copied, "no copy step in between: nothing to catch up with"
    assert Watched.checked > 20


def test_a_trained_head_is_accepted(tiny: Callable[..., Lens]) -> None:
    """Trained with the published alignment elsewhere, so a shifted drafter would fail it."""
    lens = tiny("llama")
    truth = reference(lens, PROMPT, 40)
    drafter = Eagle3(fitted_head(lens, PROMPT + truth), lens, gamma=4)
    result = generate(
        lens, PROMPT, Policy("eagle3", NeuralGate(), None, drafter), max_new_tokens=40, eos_ids=()
    )
    steps = result.trace.steps
    assert sum(s.accepted > 0 for s in steps) > 0.8 * len(steps)


@pytest.mark.parametrize("subset", [None, 20])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_tree_equals_one_grown_path_by_path(
    tiny: Callable[..., Lens], subset: int | None, limit: int
) -> None:
    lens = tiny("llama")
    lens.model.double()  # so that only a real difference is one
    head = random_head(lens, draft_vocab_size=subset, seed=3, std=0.2)
    for shape in (TreeShape(25, 2, 5), TreeShape(8, 3, 3), TreeShape(200, 2, 4)):
        drafter = Eagle3(head, lens, tree=shape)
        for end in (2, 7, 13):
            drafter.reset()
            out = lens.forward(torch.tensor([PROMPT[: end - 1]]), sites=drafter.sites)
            drafter.absorb({site: stream[0] for site, stream in out.streams.items()})
            tree = drafter.propose(PROMPT[:end], limit, None)
            levels = min(limit, shape.depth + 1)
            expected = tree_from_scratch(lens, head, PROMPT[:end], levels, shape)
            assert set(paths(tree)) == expected
            assert len(tree) == len(expected) <= shape.total - 1
            assert max(tree.depths) <= limit
            assert tree.q is None


def test_same_draft_twice_and_after_reset(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    drafter = Eagle3(random_head(lens, std=0.2), lens)
    out = lens.forward(torch.tensor([PROMPT[:-1]]), sites=drafter.sites)
    streams = {site: stream[0] for site, stream in out.streams.items()}
    drafter.absorb(streams)
    first = drafter.propose(PROMPT, 9, None)
    assert len(first) == 5
    assert drafter.propose(PROMPT, 9, None) == first  # nothing of the draft stays behind
    drafter.reset()
    for part in (slice(0, 4), slice(4, 5), slice(5, None)):  # pieces wait like the whole
        drafter.absorb({site: stream[part] for site, stream in streams.items()})
    assert drafter.propose(PROMPT, 9, None).tokens == first.tokens
    assert drafter.propose(PROMPT, 2, None).tokens == first.tokens[:2]
    with pytest.raises(SwitchSDError, match="every token once"):
        drafter.propose([*PROMPT, 1], 9, None)


def test_layer_equals_its_written_out_definition() -> None:
    """One position after the other, one head after the other, with RoPE in complex numbers."""
    config = Eagle3Config(
        hidden_size=12, target_hidden_size=10, intermediate_size=20, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, vocab_size=30, draft_vocab_size=9, rms_norm_eps=1e-5,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for norm_first in (False, True):
        head = Eagle3Head(replace(config, norm_before_residual=norm_first)).double()
        with torch.no_grad():
            for weight in head.parameters():
                weight.normal_(0, 0.5, generator=generator)
        embedding = torch.randn(5, 12, generator=generator, dtype=torch.double)
        fused = head.fuse(torch.randn(5, 30, generator=generator, dtype=torch.double))
        attend = torch.ones(1, 5, 5, dtype=torch.bool).tril()
        positions = torch.arange(3, 8)
        got = head(embedding[None], fused[None], positions[None], attend)[0]
        layer = head.midlayer
        w = dict(layer.named_parameters())

        def norm(x: Tensor, weight: Tensor) -> Tensor:
            return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * weight

        def turn(x: Tensor, position: int) -> Tensor:
            spin = torch.tensor([position * 10000 ** (-2 * i / 6) for i in range(3)])
            turned = torch.complex(x[:3], x[3:]) * torch.polar(torch.ones(3), spin)
            return torch.cat([turned.real, turned.imag])

        hidden = norm(fused, w["hidden_norm.weight"])
        x = torch.cat([norm(embedding, w["input_layernorm.weight"]), hidden], -1)
        q, k, v = ((x @ w[f"self_attn.{n}_proj.weight"].T).unflatten(-1, (-1, 6)) for n in "qkv")
        mixed = torch.zeros(5, 4, 6, dtype=torch.double)
        for i in range(5):
            for h in range(4):
                key_head = h // 2
                scores = torch.stack([
                    turn(q[i, h], i + 3) @ turn(k[j, key_head], j + 3) / math.sqrt(6)
                    for j in range(i + 1)
                ])  # fmt: skip
                mixed[i, h] = scores.softmax(0) @ v[: i + 1, key_head]
        stream = (hidden if norm_first else fused) + mixed.flatten(1) @ w[
            "self_attn.o_proj.weight"
        ].T
        y = norm(stream, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T)
        up = y @ w["mlp.up_proj.weight"].T
        stream = stream + (gate * up) @ w["mlp.down_proj.weight"].T
        torch.testing.assert_close(got, stream, atol=1e-6, rtol=1e-6)
        logits = norm(stream, head.norm.weight) @ head.lm_head.weight.T
        torch.testing.assert_close(head.predict(got), logits, atol=1e-6, rtol=1e-6)


def test_parameters_have_the_published_names(tiny: Callable[..., Lens]) -> None:
    head = random_head(tiny("llama"), draft_vocab_size=20)
    layer = [f"self_attn.{p}_proj" for p in "qkvo"] + [
        f"mlp.{p}_proj" for p in ("gate", "up", "down")
    ]
    layer += ["hidden_norm", "input_layernorm", "post_attention_layernorm"]
    expected = {f"midlayer.{name}.weight" for name in layer}
    expected |= {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert set(head.state_dict()) == expected
    assert head.midlayer.self_attn.q_proj.weight.shape == (32, 64)
    # d2t holds offsets, t2d which of the target's tokens are drafted
    assert head.d2t is not None
    assert head.t2d is not None
    ids = (torch.arange(20) + head.d2t).tolist()
    assert len(set(ids)) == 20
    assert head.t2d.nonzero().flatten().tolist() == sorted(ids)
    assert set(random_head(tiny("llama")).state_dict()) == expected - {"d2t", "t2d"}


def test_fused_sites_are_the_published_ones() -> None:
    def layers(n: int, aux: tuple[int, ...] | None = None) -> list[int]:
        sites = fused_sites(n, aux)
        assert all(site.endswith(".hook_resid_post") for site in sites)
        return [int(site.split(".")[1]) for site in sites]

    assert layers(32) == [1, 15, 28]
    assert layers(36) == [1, 17, 32]
    assert layers(30) == [1, 14, 26]
    assert layers(32, (3, 10, 20)) == [2, 9, 19]
    assert all(0 <= layer < n for n in range(1, 6) for layer in layers(n))


def test_features_come_from_the_sites_in_order(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama", num_hidden_layers=6)
    drafter = Eagle3(random_head(lens), lens)
    assert drafter.sites == tuple(f"blocks.{i}.hook_resid_post" for i in (1, 2, 2))[:2]
    wide = tiny("llama", num_hidden_layers=8)
    drafter = Eagle3(random_head(wide), wide)
    assert drafter.sites == tuple(f"blocks.{i}.hook_resid_post" for i in (1, 3, 4))
    streams = {site: torch.full((2, 32), float(n)) for n, site in enumerate(drafter.sites)}
    drafter.absorb(dict(reversed(streams.items())))
    assert drafter._waiting[0][0].tolist() == [0.0] * 32 + [1.0] * 32 + [2.0] * 32


def test_drafts_its_own_vocabulary_only(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    head = random_head(lens, draft_vocab_size=6, seed=2, std=0.2)
    allowed = set(head.target_ids.tolist())
    drafter = Eagle3(head, lens)
    out = lens.forward(torch.tensor([PROMPT[:-1]]), sites=drafter.sites)
    drafter.absorb({site: stream[0] for site, stream in out.streams.items()})
    tree = drafter.propose(PROMPT, 9, torch.Generator().manual_seed(0))
    assert tree.q is not None
    assert tree.q.shape == (5, 32)
    assert set(tree.q.sum(0).nonzero().flatten().tolist()) == allowed
    assert set(tree.tokens) <= allowed
    # the right logits at the right ids
    logits = head.predict(from_scratch(lens, head, PROMPT, [])).double()
    torch.testing.assert_close(tree.q[0, head.target_ids], logits.softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("shape", [None, TreeShape(8, 1, 3)])
@pytest.mark.parametrize("subset", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_sampled_outputs_have_the_targets_distribution(
    tiny: Callable[..., Lens], shape: TreeShape | None, subset: int | None
) -> None:
    lens = tiny("llama", vocab_size=4, num_hidden_layers=1)
    head = random_head(lens, draft_vocab_size=subset, seed=4, std=0.4)
    settings = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2)

    def make(sampling: Sampling) -> Policy:
        drafter = Eagle3(head, lens, gamma=2, tree=shape, sampling=sampling)
        return Policy("eagle3", CopyGate(), RecentCopier(W=2, D=2, n=3), drafter)

    distance, chance = check_exact(lens, [1, 2, 0, 1], settings, make)
    assert distance <= chance


def test_no_feature_no_draft(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    policy = Policy("eagle3", NeuralGate(), None, Eagle3(random_head(lens), lens))
    got = generate(lens, [5], policy, max_new_tokens=20, eos_ids=())
    assert got.ids == reference(lens, [5], 20)
    assert [s.proposed for s in got.trace.steps][:2] == [0, 5]


@pytest.mark.parametrize("tree", [None, TreeShape(12, 3, 2)])
def test_beyond_the_heads_positions_the_target_goes_on_alone(
    tiny: Callable[..., Lens], tree: TreeShape | None
) -> None:
    lens = tiny("llama")
    head = random_head(lens, std=0.2)
    head.config = replace(head.config, max_position_embeddings=24)
    used: list[int] = []
    head.midlayer.register_forward_pre_hook(lambda _, args: used.append(int(args[2].max())))
    drafter = Eagle3(head, lens, gamma=4, tree=tree)
    policy = Policy("eagle3", NeuralGate(), None, drafter)
    with pytest.warns(UserWarning, match="outgrown the 24 positions") as caught:
        got = [generate(lens, PROMPT, policy, max_new_tokens=40, eos_ids=()) for _ in range(2)]
    assert len(caught) == 1
    assert got[0].ids == got[1].ids == reference(lens, PROMPT, 40)
    assert max(used) == 23  # the last of its positions is used, and none behind it
    drafted = [s.position for s in got[1].trace.steps if s.proposed]
    assert max(drafted) <= 25  # the newest pair stood at 23
    assert len(drafter._waiting) <= 2  # features are not kept for nothing


def test_works_in_bfloat16(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    lens.model.to(torch.bfloat16)
    drafter = Eagle3(random_head(lens, draft_vocab_size=20), lens, tree=TreeShape(12, 2, 3))
    got = generate(
        lens, PROMPT, Policy("eagle3", NeuralGate(), None, drafter), max_new_tokens=20, eos_ids=()
    )
    assert len(got.ids) == 20
    assert got.trace.steps[0].proposed == 11


@pytest.mark.model
def test_on_the_default_model(lens: Lens) -> None:
    prompt = lens.tokenizer("one two three four, one two three").input_ids
    truth = reference(lens, prompt, 12)
    head = random_head(lens, draft_vocab_size=4096)
    for tree in (None, TreeShape(12, 2, 3)):
        policy = Policy("eagle3", NeuralGate(), None, Eagle3(head, lens, tree=tree))
        got = generate(lens, prompt, policy, max_new_tokens=12, eos_ids=())
        assert got.ids == truth
        assert got.trace.steps[0].proposed == (5 if tree is None else 11)


def test_bad_input_is_named(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    head = random_head(lens)
    for message, call in {
        "gamma = 0": lambda: Eagle3(head, lens, gamma=0),
        "for a target of width 32 with 32 tokens": lambda: Eagle3(
            head, tiny("llama", vocab_size=40)
        ),
        "draft_vocab_size = 99": lambda: random_head(lens, draft_vocab_size=99),
        "total has to be": lambda: TreeShape(total=1),
        "another set": lambda: random_head(lens, draft_vocab_size=3).set_vocabulary(
            torch.tensor([1, 1, 2])
        ),
        "do not work out": lambda: replace(head.config, num_key_value_heads=3),
        "three layers": lambda: replace(head.config, aux_layers=(1, 2)),
    }.items():
        with pytest.raises(SwitchSDError, match=message):
            call()
