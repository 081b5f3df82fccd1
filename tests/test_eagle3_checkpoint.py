"""EAGLE-3 heads on disk: the published layouts are read, everything else is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchsd import SwitchSDError
from switchsd.decoding.drafters.eagle3 import Eagle3
from switchsd.decoding.drafters.eagle3_checkpoint import load_head, save_head
from switchsd.decoding.drafters.eagle3_head import Eagle3Head, random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.gates import NeuralGate
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


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_published_layouts_are_read(
    tiny: Callable[..., Lens], tmp_path: Path, prefix: str, kind: str
) -> None:
    lens = tiny("llama")
    head = random_head(lens, draft_vocab_size=12, seed=3)
    weights = published(tmp_path / "head", head)
    weights = {name.replace("midlayer.", prefix): part for name, part in weights.items()}
    if kind == "bin":
        torch.save(weights, tmp_path / "head" / "pytorch_model.bin")
    else:
        save_file(weights, tmp_path / "head" / "model.safetensors")
    back = load_head(tmp_path / "head", lens)
    assert same(head, back)
    assert back.config.rope_theta == 10000.0  # none is written: not the target's
    assert back.config.aux_layers is None


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
    elif what == "another set":
        changed["d2t"] = changed["d2t"] + 30
    return changed


@pytest.mark.parametrize(
    "what",
    [
        *("lacks fc.weight", "unknown midlayer.extra", "config says", "d2t is missing"),
        *("11 entries", "different tokens", "another set"),
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
