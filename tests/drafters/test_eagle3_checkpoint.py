"""EAGLE-3 heads on disk: the published layouts are read, everything else is refused by name."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchsd import SwitchSDError
from switchsd.decoding.eagle3.checkpoint import load_head, save_head
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.eagle3.head import Eagle3Head, random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.gates.gate import NeuralGate
from switchsd.decoding.policies import Policy
from switchsd.probing.lens import Lens
from torch import Tensor


def published(folder: Path, head: Eagle3Head, **changes: Any) -> dict[str, Tensor]:
    """Write a head's config as checkpoints on the hub have it; gives the weights to be written."""
    folder.mkdir()
    c = head.config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads, "num_hidden_layers": 1,
        "num_key_value_heads": c.num_key_value_heads, "rms_norm_eps": 1e-05,
        "vocab_size": c.vocab_size, "draft_vocab_size": c.draft_vocab_size, **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return {name: part.clone() for name, part in head.state_dict().items()}


def same(a: Eagle3Head, b: Eagle3Head) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("subset", [None, 12])
def test_saved_head_comes_back(
    tiny: Callable[..., Lens], tmp_path: Path, subset: int | None
) -> None:
    lens = tiny("qwen3")  # head_dim is not hidden_size / heads
    head = random_head(lens, draft_vocab_size=subset, seed=3, std=0.2)
    folder = save_head(head, tmp_path / "head")
    back = load_head(folder, lens)
    assert same(head, back)
    assert back.config == head.config
    drafted = []
    for each in (head, back):
        policy = Policy("eagle3", NeuralGate(), None, Eagle3(each, lens))
        drafted.append(generate(lens, [1, 2, 3, 4], policy, max_new_tokens=20, eos_ids=()).trace)
    assert [s.accepted for s in drafted[0].steps] == [s.accepted for s in drafted[1].steps]
    assert set(load_file(folder / "model.safetensors")) == set(head.state_dict())
    with pytest.raises(SwitchSDError, match="holds a head already"):
        save_head(head, folder)


LAYER = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"),
)
TOP = ("fc.weight", "norm.weight", "lm_head.weight")


@dataclass(frozen=True)
class Layout:
    """A published checkpoint at small size: its target, its keys and what its config says."""

    target: str
    config: dict[str, Any]
    prefix: str = "midlayer."
    file: str = "pytorch_model.bin"
    part: bool = True  # of the vocabulary
    own_embeddings: bool = False
    theta: float = 10000.0

    @property
    def keys(self) -> set[str]:
        keys = {*TOP, *(f"{self.prefix}{name}" for name in LAYER)}
        keys |= {"d2t", "t2d"} if self.part else set()
        return keys | ({"embed_tokens.weight"} if self.own_embeddings else set())


LLAMA_8B = {"max_position_embeddings": 2048, "pad_token_id": 0, "torch_dtype": "float16"}
LLAMA_70B = {**LLAMA_8B, "hidden_size": 24, "target_hidden_size": 32, "num_attention_heads": 3,
             "num_key_value_heads": 1, "intermediate_size": 40}  # fmt: skip
QWEN3 = {"head_dim": 16, "rope_theta": 1000000, "rope_scaling": None, "torch_dtype": "bfloat16",
         "attention_bias": False, "max_position_embeddings": 40960}  # fmt: skip
LAYOUTS = {
    "Llama-3.1-8B": Layout("llama-rope", LLAMA_8B),
    "Llama-3.1-8B, whole vocabulary": Layout("llama-rope", LLAMA_8B, part=False),
    "Llama-3.1-8B, layers.0, safetensors": Layout(
        "llama-rope", LLAMA_8B, prefix="layers.0.", file="model.safetensors"
    ),
    "Llama-3.3-70B": Layout("llama-rope", LLAMA_70B, own_embeddings=True),
    "Llama-3.3-70B, whole vocabulary": Layout(
        "llama-rope", LLAMA_70B, own_embeddings=True, part=False
    ),
    "Qwen3": Layout("qwen3", QWEN3, file="model.safetensors", theta=1e6),
    "Qwen3, whole vocabulary": Layout(
        "qwen3", QWEN3, file="model.safetensors", part=False, theta=1e6
    ),
    "Qwen3, layers.0, bin": Layout("qwen3", QWEN3, prefix="layers.0.", theta=1e6),
}


def checkpoint(folder: Path, layout: Layout, lens: Lens) -> dict[str, Tensor]:
    """Write it from its keys alone, without any code that reads it; gives what was written."""
    c = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-05, "vocab_size": 32,
        "draft_vocab_size": 12 if layout.part else 32, **layout.config,
    }  # fmt: skip
    d, inner = c["hidden_size"], c["intermediate_size"]
    head_dim = c.get("head_dim", d // c["num_attention_heads"])
    wide, narrow = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    shapes = {
        "q_proj": (wide, 2 * d), "k_proj": (narrow, 2 * d), "v_proj": (narrow, 2 * d),
        "o_proj": (d, wide), "gate_proj": (inner, d), "up_proj": (inner, d),
        "down_proj": (d, inner), "fc": (d, 3 * lens.d_model),
        "lm_head": (c["draft_vocab_size"], d), "embed_tokens": (32, d),
    }  # fmt: skip
    half = getattr(torch, c["torch_dtype"])
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for key in sorted(layout.keys - {"d2t", "t2d"}):
        shape = shapes.get(key.split(".")[-2], (d,))
        weights[key] = (0.3 * torch.randn(shape, generator=generator) + (len(shape) == 1)).to(half)
    if layout.part:
        ids = torch.randperm(32, generator=generator)[:12].sort().values
        weights["d2t"] = ids - torch.arange(12)
        weights["t2d"] = torch.zeros(32, dtype=torch.bool).index_fill(0, ids, True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(c))
    if layout.file.endswith(".bin"):
        torch.save(weights, folder / layout.file)
    else:
        save_file(weights, folder / layout.file)
    return weights


@pytest.mark.filterwarnings("ignore:.*names no rope_theta")
@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_are_read(tiny: Callable[..., Lens], tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    lens = tiny(layout.target)
    written = checkpoint(tmp_path / "head", layout, lens)
    head = load_head(tmp_path / "head", lens)
    back = head.state_dict()
    named = {key.replace("layers.0.", "midlayer."): value for key, value in written.items()}
    assert back.keys() == named.keys()
    for key, value in named.items():
        assert torch.equal(back[key], value.to(back[key].dtype)), key
    assert head.config.rope_theta == layout.theta  # never the target's
    assert head.config.own_embeddings == layout.own_embeddings
    assert head.config.max_position_embeddings == layout.config["max_position_embeddings"]
    policy = Policy("eagle3", NeuralGate(), None, Eagle3(head, lens, gamma=3))
    got = generate(lens, [1, 2, 3, 4], policy, max_new_tokens=20, eos_ids=())
    plain = generate(lens, [1, 2, 3, 4], "vanilla", max_new_tokens=20, eos_ids=())
    assert got.ids == plain.ids
    assert max(step.proposed for step in got.trace.steps) == 3
    # and what is saved again has the keys that other loaders look for
    again = save_head(head, tmp_path / "again")
    assert set(load_file(again / "model.safetensors")) == set(named)
    assert same(load_head(again, lens), head)


@pytest.mark.filterwarnings("ignore:.*names no rope_theta")
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_may_lack_or_add_a_key(
    tiny: Callable[..., Lens], tmp_path: Path, name: str
) -> None:
    layout = LAYOUTS[name]
    lens = tiny(layout.target)
    weights = checkpoint(tmp_path / "head", layout, lens)
    file = tmp_path / "head" / layout.file

    def write(changed: dict[str, Tensor]) -> None:
        torch.save(changed, file) if file.suffix == ".bin" else save_file(changed, file)

    for key in sorted(layout.keys - {"d2t", "t2d"}):  # either of these two names the other
        if key == "embed_tokens.weight":
            message = "without embeddings of its own"
        else:
            message = f"lacks {key.replace('layers.0.', 'midlayer.')}"
        write({name: part for name, part in weights.items() if name != key})
        with pytest.raises(SwitchSDError, match=message):
            load_head(tmp_path / "head", lens)
    write({**weights, f"{layout.prefix}self_attn.q_norm.weight": torch.ones(8)})
    with pytest.raises(SwitchSDError, match=r"unknown midlayer\.self_attn\.q_norm\.weight"):
        load_head(tmp_path / "head", lens)


def test_rope_that_could_be_inherited_is_warned_of(
    tiny: Callable[..., Lens], tmp_path: Path
) -> None:
    cases = (
        ("llama-rope", {}, "unscaled, is used.*10000, scaled as llama3"),
        ("llama-far", {}, "base 10000, unscaled, is used.*has 500000"),
        ("llama-far", {"rope_theta": 10000.0}, None),
        ("llama-far", {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, None),
        ("llama", {}, None),  # the target's is what is used anyway
    )
    for number, (kind, config, message) in enumerate(cases):
        far = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
        lens = tiny("llama", **far) if kind == "llama-far" else tiny(kind)
        folder = tmp_path / str(number)
        save_file(published(folder, random_head(lens), **config), folder / "model.safetensors")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            head = load_head(folder, lens)
        told = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
        assert len(told) == (message is not None), told
        if message is not None:
            assert re.search(message, told[0])
            assert head.config.rope_theta == 10000.0


def test_what_a_config_can_say(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama", num_hidden_layers=8)
    head = random_head(lens)
    for number, extra in enumerate((
        {"eagle_aux_hidden_state_layer_ids": [3, 5, 7]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 5, 7]}},
    )):  # fmt: skip
        folder = tmp_path / str(number)
        weights = published(folder, head, rope_theta=500000.0, norm_before_residual=True, **extra)
        weights["embed_tokens.weight"] = torch.ones(32, 32)
        save_file(weights, folder / "model.safetensors")
        back = load_head(folder, lens)
        assert back.config.rope_theta == 500000.0
        assert back.config.norm_before_residual
        drafter = Eagle3(back, lens)
        assert drafter.sites == tuple(f"blocks.{i}.hook_resid_post" for i in (2, 4, 6))
        assert drafter._embed.weight.unique().tolist() == [1.0]


def test_t2d_alone_names_the_vocabulary(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    head = random_head(lens, draft_vocab_size=12, seed=3)
    weights = published(tmp_path / "head", head)
    del weights["d2t"]
    save_file(weights, tmp_path / "head" / "model.safetensors")
    assert same(load_head(tmp_path / "head", lens), head)


def broken(weights: dict[str, Tensor], what: str) -> dict[str, Tensor]:
    changed = dict(weights)
    if what == "lacks fc.weight":
        del changed["fc.weight"]
    elif what == "unknown midlayer.extra":
        changed["midlayer.extra"] = torch.zeros(1)
    elif what == "config says":
        changed["lm_head.weight"] = torch.zeros(11, 32)
    elif what == "d2t is missing":
        del changed["d2t"], changed["t2d"]
    elif what == "11 entries":
        changed["d2t"] = changed["d2t"][:11]
    elif what == "different tokens":
        changed["t2d"] = ~changed["t2d"]
    elif what == "all zero":
        changed["d2t"] = torch.zeros_like(changed["d2t"])
        changed["t2d"] = torch.arange(32) < 12  # so the two do not even contradict each other
    elif what == "another set":
        changed["d2t"] = changed["d2t"] + 30
    return changed


@pytest.mark.parametrize(
    "what",
    [
        *("lacks fc.weight", "unknown midlayer.extra", "config says", "d2t is missing"),
        *("11 entries", "different tokens", "another set", "all zero"),
    ],
)
def test_a_wrong_layout_is_named(tiny: Callable[..., Lens], tmp_path: Path, what: str) -> None:
    lens = tiny("llama")
    weights = published(tmp_path / "head", random_head(lens, draft_vocab_size=12, seed=3))
    save_file(broken(weights, what), tmp_path / "head" / "model.safetensors")
    with pytest.raises(SwitchSDError, match=what):
        load_head(tmp_path / "head", lens)


def test_bad_files_are_named(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    with pytest.raises(SwitchSDError, match="no EAGLE-3 head"):
        load_head(tmp_path, lens)
    head = random_head(lens)
    for number, (message, data, name) in enumerate((
        ("cannot read the EAGLE-3 weights", b"nonsense", "model.safetensors"),
        ("cannot read the EAGLE-3 weights", b"nonsense", "pytorch_model.bin"),
        ("cannot read the EAGLE-3 weights", b"", "pytorch_model.bin"),
    )):  # fmt: skip
        folder = tmp_path / f"bad{number}"
        published(folder, head)
        (folder / name).write_bytes(data)
        with pytest.raises(SwitchSDError, match=message):
            load_head(folder, lens)
    for number, (message, changes) in enumerate((
        ("scaled RoPE", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
        ("for a target of width 32 with 99", {"vocab_size": 99}),
        ("for a target of width 64 with 32", {"target_hidden_size": 64}),
        ("width 16 without embeddings", {"hidden_size": 16, "target_hidden_size": 32}),
        ("lacks lm_head", {}),
    )):  # fmt: skip
        folder = tmp_path / f"config{number}"
        weights = published(folder, head, **changes)
        if not changes:
            del weights["lm_head.weight"]
        save_file(weights, folder / "model.safetensors")
        with pytest.raises(SwitchSDError, match=message):
            load_head(folder, lens)
    published(tmp_path / "list", head)
    torch.save([torch.zeros(1)], tmp_path / "list" / "pytorch_model.bin")
    with pytest.raises(SwitchSDError, match="no table of named weights"):
        load_head(tmp_path / "list", lens)
    folder = tmp_path / "noconfig"
    save_file(published(folder, head), folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    with pytest.raises(SwitchSDError, match="lacks hidden_size"):
        load_head(folder, lens)
    (folder / "config.json").write_text("{")
    with pytest.raises(SwitchSDError, match="cannot read"):
        load_head(folder, lens)


def test_no_code_is_unpickled(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    lens = tiny("llama")
    published(tmp_path / "head", random_head(lens))
    torch.save({"fc.weight": Trap()}, tmp_path / "head" / "pytorch_model.bin")
    with pytest.raises(SwitchSDError, match="cannot read the EAGLE-3 weights"):
        load_head(tmp_path / "head", lens)
    assert not (tmp_path / "sprung").exists()
