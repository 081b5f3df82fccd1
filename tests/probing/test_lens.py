"""The lens: two backends agree at every stream, and a KV cache that rolls back exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.anatomy import STREAMS, Site
from switchsd.probing.lens import Lens
from switchsd.probing.loading import load, wrap
from tiny_models import tiny_model
from tolerance import close
from torch import Tensor

KINDS = ["llama", "llama-rope", "qwen3", "mistral", "gemma3", "gpt2"]


def all_sites(lens: Lens, layers: list[int]) -> list[str]:
    return [f"blocks.{i}.{s}" for i in layers for s in (*STREAMS, "attn.hook_z")]


def padded(length: int, keep: int) -> Tensor:
    """A batch of two whose second row ends in pads."""
    attend = torch.ones(2, length, length, dtype=torch.bool).tril()
    attend[1, :, keep:] = False
    attend[1] |= torch.eye(length, dtype=torch.bool)  # a pad row sees itself: no empty softmax
    return attend


def assert_backends_agree(live: Lens, bridge: Lens, layers: list[int], vocab: int) -> None:
    ids = torch.randint(0, vocab, (2, 15), generator=torch.Generator().manual_seed(0))
    sites = all_sites(live, layers)
    for attend, keep in ((None, 15), (padded(15, 9), 9)):
        a = live.forward(ids, sites=sites, attend=attend)
        b = bridge.forward(ids, sites=sites, attend=attend)
        assert set(a.streams) == set(b.streams) == set(sites)
        for site in sites:
            for x, y in ((a.streams[site][0], b.streams[site][0]),
                         (a.streams[site][1, :keep], b.streams[site][1, :keep])):  # fmt: skip
                assert x.shape == y.shape
                # 1e-5 of the stream's size: some coordinates reach thousands
                assert (x - y).abs().max() <= 1e-5 * max(1.0, x.abs().max().item()), site


@pytest.mark.parametrize("kind", ["llama", "llama-rope", "qwen3", "mistral", "gemma3", "gpt2"])
def test_backends_agree_on_tiny_models(tiny: Callable[..., Lens], kind: str) -> None:
    assert_backends_agree(tiny(kind), tiny(kind, backend="bridge"), [0, 1, 2], 32)


@pytest.mark.model
def test_backends_agree_on_the_default_model(lens: Lens, bridge_lens: Lens) -> None:
    assert lens.n_kv_heads < lens.n_heads  # grouped-query attention
    assert_backends_agree(lens, bridge_lens, list(range(lens.n_layers)), lens.d_vocab)


def test_streams_are_what_their_names_say(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    ids = torch.arange(12)[None]
    s = lens.forward(ids, sites=all_sites(lens, [0, 1])).streams
    assert torch.allclose(
        s["blocks.1.hook_resid_pre"] + s["blocks.1.hook_attn_out"], s["blocks.1.hook_resid_mid"]
    )
    assert torch.allclose(
        s["blocks.1.hook_resid_mid"] + s["blocks.1.hook_mlp_out"], s["blocks.1.hook_resid_post"]
    )
    assert torch.equal(s["blocks.0.hook_resid_post"], s["blocks.1.hook_resid_pre"])
    assert torch.allclose(s["blocks.0.hook_resid_pre"], lens.model.model.embed_tokens(ids))
    weight = lens.model.model.layers[1].self_attn.o_proj.weight
    z = s["blocks.1.attn.hook_z"]
    close(z.flatten(-2) @ weight.T, s["blocks.1.hook_attn_out"], length=lens.d_model)


def test_rows_and_early_stop_change_nothing(tiny: Callable[..., Lens]) -> None:
    for backend in ("live", "bridge"):
        lens = tiny("llama", backend=backend)
        ids = torch.randint(0, 32, (2, 9))
        rows = torch.rand(2, 9) > 0.5
        sites = all_sites(lens, [0, 1])
        whole = lens.forward(ids, sites=sites).streams
        part = lens.forward(ids, sites=sites, rows=rows, logits="none").streams
        for site in sites:
            # the same forwards, cut short: the same bits
            assert torch.equal(part[site], whole[site][rows]), (backend, site)


def test_patterns_are_on_the_bridge_only(tiny: Callable[..., Lens]) -> None:
    ids = torch.arange(10)[None]
    pattern = "blocks.0.attn.hook_pattern"
    bridge = tiny("llama", backend="bridge")
    got = bridge.forward(ids, sites=[pattern]).streams[pattern]
    assert got.shape == (1, 4, 10, 10)
    assert torch.allclose(got.sum(-1), torch.ones(1, 4, 10))
    with pytest.raises(SwitchSDError, match="bridge"):
        tiny("llama").forward(ids, sites=[pattern])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["live", "bridge"])
def test_kv_walks_equal_an_uncached_forward(
    tiny: Callable[..., Lens], kind: str, backend: str
) -> None:
    """Random trees, random accepted paths, rollbacks: the next logits are those of a fresh run."""
    from switchsd.decoding.step.tree import DraftTree

    lens = tiny(kind, backend=backend)
    rng = random.Random(1)
    for _ in range(6):
        kv, committed = lens.new_kv(), [rng.randrange(32) for _ in range(rng.randrange(2, 20))]
        lens.forward(torch.tensor([committed[:-1]]), kv=kv)
        for _ in range(8):
            base = len(committed) - 1
            assert kv.length == base
            tree = DraftTree.merge(
                [[rng.randrange(3) for _ in range(rng.randrange(1, 5))] for _ in range(3)]
            )
            slots = len(tree) + 1
            attend = torch.ones(1, slots, base + slots, dtype=torch.bool)
            attend[0, :, base:] = torch.from_numpy(tree.attend)
            positions = torch.from_numpy(base + tree.depths)[None]
            ids = torch.tensor([[committed[-1], *tree.tokens]])
            got = lens.forward(ids, attend=attend, positions=positions, kv=kv).logits
            node = rng.randrange(-1, len(tree))
            path = []
            while node >= 0:
                path.insert(0, node)
                node = tree.parents[node]
            prefix = [*committed, *(tree.tokens[i] for i in path)]
            fresh = lens.forward(torch.tensor([prefix]), logits="last").logits
            slot = path[-1] + 1 if path else 0
            close(got[0, slot], fresh[0, -1], length=2 * 3 * lens.d_model)  # two sums a layer
            kv.commit(base, [0, *(i + 1 for i in path)])
            committed = [*prefix, rng.randrange(32)]
        keep = rng.randrange(1, kv.length)
        kv.rollback(keep)
        got = lens.forward(torch.tensor([committed[keep : keep + 3]]), kv=kv, logits="last").logits
        fresh = lens.forward(torch.tensor([committed[: keep + 3]]), logits="last").logits
        close(got, fresh, length=2 * 3 * lens.d_model)


def test_commit_refuses_what_is_no_path(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    kv = lens.new_kv()
    lens.forward(torch.arange(6)[None], kv=kv)
    for base, path in ((0, [1, 1]), (2, [0, 4]), (0, [-1])):
        with pytest.raises(SwitchSDError):
            kv.commit(base, path)
    with pytest.raises(SwitchSDError):
        kv.rollback(7)


def test_fingerprint_follows_the_weights_not_the_dtype(tiny: Callable[..., Lens]) -> None:
    a, b = tiny("llama"), tiny("llama", seed=1)
    assert a.fingerprint != b.fingerprint
    assert wrap(tiny_model("llama").bfloat16()).fingerprint == a.fingerprint
    changed = tiny_model("llama")
    with torch.no_grad():
        changed.model.layers[2].mlp.up_proj.weight[0, 0] += 0.5
    assert wrap(changed).fingerprint != a.fingerprint


def test_sites_are_checked(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    with pytest.raises(SwitchSDError, match="layers 0–2"):
        lens.check_sites(["blocks.3.hook_resid_mid"])
    with pytest.raises(SwitchSDError, match="unknown site"):
        lens.check_sites(["blocks.1.hook_resid"])
    assert str(Site.parse("blocks.2.attn.hook_z")) == "blocks.2.attn.hook_z"


def test_recurrent_layers_are_refused() -> None:
    import transformers as hf

    config = hf.MambaConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2)
    from switchsd.probing.kv import KV

    with pytest.raises(SwitchSDError, match="rolled back"):
        KV(config)


def test_models_that_are_no_plain_decoder_are_refused_with_the_reason() -> None:
    import transformers as hf

    size = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2}
    cases = {
        "rolled back": hf.MambaForCausalLM(hf.MambaConfig(**size)),
        "decoder-only": hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
        ),
        "no attention and MLP": hf.GPTNeoXForCausalLM(
            hf.GPTNeoXConfig(**size, num_attention_heads=4, intermediate_size=32)
        ),
    }
    for reason, model in cases.items():
        with pytest.raises(SwitchSDError, match=reason):
            wrap(model.eval())


def test_hooks_that_do_not_add_up_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from switchsd.probing import lens as lens_module

    find = lens_module.find_blocks

    def misplaced(model):
        blocks = find(model)
        blocks[-1].streams["hook_attn_out"] = (model.model.layers[-1].input_layernorm, "out")
        return blocks

    monkeypatch.setattr(lens_module, "find_blocks", misplaced)
    with pytest.raises(SwitchSDError, match="add up"):
        wrap(tiny_model("llama"))


def test_models_that_would_lie_are_refused(tmp_path: Path, tokenizer) -> None:
    from safetensors.torch import load_file, save_file

    model = tiny_model("llama")
    with pytest.raises(SwitchSDError, match="training mode"):
        wrap(model.train())
    with torch.no_grad():
        model.eval().model.norm.weight[0] = float("nan")
    with pytest.raises(SwitchSDError, match="NaN"):
        wrap(model)
    with pytest.raises(SwitchSDError, match="device"):
        wrap(tiny_model("llama"), device="meta")
    tiny_model("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SwitchSDError, match="would be random"):
        load(str(tmp_path))


def test_longrope_ends_where_its_frequencies_change() -> None:
    factors = [1.0, 2.0, 3.0, 4.0]
    scaled = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "short_factor": factors, "long_factor": [2 * f for f in factors],
    }  # fmt: skip
    lens = wrap(tiny_model("llama", rope_parameters=scaled))
    assert lens.n_ctx == 64


def test_a_broken_cache_is_found_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    from switchsd.probing.kv import _GrowingLayer

    grow = _GrowingLayer.update

    def forgetful(self, keys, values, *args, **kwargs):
        if self.used:  # what transformers 5.24 does to the bridge: the past is not there
            self._keys.zero_(), self._values.zero_()
        return grow(self, keys, values, *args, **kwargs)

    monkeypatch.setattr(_GrowingLayer, "update", forgetful)
    with pytest.raises(SwitchSDError, match="KV cache"):
        wrap(tiny_model("llama"))


def test_unknown_and_damaged_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(SwitchSDError, match="unknown model"):
        load("no-such-model-anywhere")
    with pytest.raises(SwitchSDError, match="unknown dtype"):
        load(dtype="float8")
    with pytest.raises(SwitchSDError, match="unknown backend"):
        load(backend="dead")  # type: ignore[arg-type]
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(SwitchSDError, match=r"cannot load .*damaged"):
        load(str(tmp_path))
