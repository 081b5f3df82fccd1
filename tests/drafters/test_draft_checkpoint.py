"""SPS drafts on disk: they come back tied to their target, and everything else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from switchsd import SwitchSDError
from switchsd.decoding.drafters.draft_checkpoint import load_draft, save_draft
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.engine import generate
from switchsd.decoding.gates.gate import NeuralGate
from switchsd.decoding.policies import Policy
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.training.sps_task import SpsRecipe, warm_draft
from switchsd.probing.lens import Lens
from switchsd.probing.loading import wrap
from tiny_models import tiny_model
from tolerance import close

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SOME = torch.arange(0, 32, 2)
FILES = ("config.json", "draft.json", "model.safetensors")


def saved(lens: Lens, folder: Path, ids: torch.Tensor | None = SOME, **options: Any) -> Path:
    draft = warm_draft(lens, SpsRecipe(), ids)
    return save_draft(draft, folder, target=lens, about={"steps": 7}, **options)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("ids", [None, SOME])
def test_saved_draft_comes_back(
    tiny: Callable[..., Lens], tmp_path: Path, dtype: str, ids: torch.Tensor | None
) -> None:
    lens = tiny("llama-rope")
    folder = saved(lens, tmp_path / "draft", ids, dtype=dtype)
    draft: Any = warm_draft(lens, SpsRecipe(), ids)
    half = getattr(torch, dtype)
    for layers in (draft.model.layers, draft.model.norm):
        for weight in layers.parameters():
            weight.data = weight.data.to(half).float()
    back = load_draft(folder, lens)
    tokens = torch.tensor([PROMPT])
    found = back.forward(tokens).logits
    mine, theirs = back.model.state_dict(), draft.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    close(found, draft(tokens).logits, length=2 * lens.d_model)
    weights = load_file(folder / "model.safetensors")
    own = {name: weight for name, weight in weights.items() if name != "draft_ids"}
    assert not [name for name in own if "embed" in name or "head" in name]
    assert {weight.dtype for weight in own.values()} == {half}
    assert ("draft_ids" in weights) == (ids is not None)
    card = json.loads((folder / "draft.json").read_text())
    assert (card["kind"], card["target"]) == ("sps", lens.name)
    assert card["fingerprint"] == lens.fingerprint
    assert card["about"] == {
        "steps": 7, "tied_embeddings": True, "draft_vocab_size": None if ids is None else 16,
    }  # fmt: skip
    modes = {(folder / name).stat().st_mode for name in FILES}
    assert len(modes) == 1


def test_config_is_a_plain_llamas(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    from transformers import AutoConfig

    lens = tiny("llama-rope")
    folder = saved(lens, tmp_path / "draft")
    found = AutoConfig.from_pretrained(folder)
    expected = warm_draft(lens, SpsRecipe()).config
    assert type(found) is type(expected)
    changing = ("architectures", "dtype", "_name_or_path", "transformers_version")
    left, right = ({k: v for k, v in c.to_dict().items() if k not in changing}
                   for c in (found, expected))  # fmt: skip
    assert left == right


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_shared_with_the_target(
    tiny: Callable[..., Lens], tmp_path: Path, tied: bool
) -> None:
    lens = tiny("llama", tie_word_embeddings=tied)
    back = load_draft(saved(lens, tmp_path / "draft"), lens)
    assert back.config.tie_word_embeddings == tied
    for mine, theirs in (
        (back.model.get_input_embeddings(), lens.model.get_input_embeddings()),
        (back.model.get_output_embeddings(), lens.model.get_output_embeddings()),
    ):
        assert mine.weight.data_ptr() == theirs.weight.data_ptr()
        assert not mine.weight.requires_grad
        assert theirs.weight.requires_grad
    assert back.tokenizer is lens.tokenizer
    assert back.d_vocab == lens.d_vocab
    assert not back.model.training


def test_takes_the_targets_dtype(tmp_path: Path) -> None:
    folder = saved(wrap(tiny_model("llama"), name="tiny"), tmp_path / "draft")
    low = wrap(tiny_model("llama").to(torch.bfloat16), name="tiny")
    back = load_draft(folder, low)
    assert {weight.dtype for weight in back.model.parameters()} == {torch.bfloat16}
    # rotary angles of long texts need their digits
    assert back.model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("ids", [None, SOME])
def test_decodes_exactly(
    tiny: Callable[..., Lens], tmp_path: Path, ids: torch.Tensor | None
) -> None:
    lens = tiny("llama", num_hidden_layers=4, initializer_range=0.15)
    draft = load_draft(saved(lens, tmp_path / "draft", ids), lens)
    vanilla = Policy("vanilla", NeuralGate(), None, None)
    truth = generate(lens, PROMPT, vanilla, max_new_tokens=60, eos_ids=()).ids
    policy = Policy("sps", NeuralGate(), None, DraftModel(draft, lens, gamma=4))
    got = generate(lens, PROMPT, policy, max_new_tokens=60, eos_ids=())
    assert got.ids == truth
    steps = got.trace.steps
    assert sum(step.accepted for step in steps)
    assert sum(step.accepted < step.proposed for step in steps)


def test_drafts_only_what_it_was_trained_on(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    draft = load_draft(saved(lens, tmp_path / "draft"), lens)
    drafter = DraftModel(draft, lens, gamma=5, sampling=Sampling(temperature=1.0))
    generator = torch.Generator().manual_seed(0)
    for drawn in (None, *[generator] * 20):
        drafter.reset()
        tokens = drafter.propose(PROMPT, 9, drawn).tokens
        assert len(tokens) == 5
        assert all(token % 2 == 0 for token in tokens)


def test_nothing_is_overwritten_or_lost(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    folder = saved(lens, tmp_path / "draft")
    before = {name: (folder / name).read_bytes() for name in FILES}
    with pytest.raises(SwitchSDError, match=r"has a config.json already"):
        saved(lens, folder)
    assert before == {name: (folder / name).read_bytes() for name in FILES}
    for name in FILES:
        part = tmp_path / f"only-{name}"
        part.mkdir()
        (part / name).write_bytes(b"")
        with pytest.raises(SwitchSDError, match=f"has a {name} already"):
            saved(lens, part)
    with pytest.raises(SwitchSDError, match="bfloat16 or float16, not in float32"):
        saved(lens, tmp_path / "other", dtype="float32")
    with pytest.raises(SwitchSDError, match="embeddings are not those of tiny-llama"):
        save_draft(tiny_model("llama", seed=3), tmp_path / "other", target=lens, about={})
    large: Any = warm_draft(lens, SpsRecipe())
    with torch.no_grad():
        large.model.norm.weight[3] = 1e6
    with pytest.raises(SwitchSDError, match=r"model.norm.weight holds numbers that float16"):
        save_draft(large, tmp_path / "other", target=lens, about={}, dtype="float16")
    assert not (tmp_path / "other").exists()


def test_another_targets_draft_is_refused(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    folder = saved(tiny("llama"), tmp_path / "draft")
    with pytest.raises(SwitchSDError, match=r"a draft for tiny-llama \(.*not for tiny-llama \("):
        load_draft(folder, tiny("llama", seed=1))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("draft.json", {"kind": "eagle3"}, "draft.json describes no SPS draft"),
        ("draft.json", {"about": None}, "draft.json describes no SPS draft"),
        ("draft.json", {"about": {"draft_vocab_size": 16}}, "draft.json describes no SPS draft"),
        (
            "draft.json",
            {"about": {"tied_embeddings": True, "draft_vocab_size": 12}},
            "drafts 16 tokens, and draft.json says 12",
        ),
        (
            "draft.json",
            {"about": {"tied_embeddings": True, "draft_vocab_size": None}},
            "drafts 16 tokens, and draft.json says all",
        ),
        ("config.json", {"model_type": "qwen3"}, "config.json is no config of a Llama"),
        ("config.json", {"hidden_size": 64}, "config.json: a draft of width 64 with 32 tokens"),
        ("config.json", {"vocab_size": 99}, "config.json: a draft of width 32 with 99 tokens"),
        ("config.json", {"num_attention_heads": "four"}, "config.json is no valid config"),
        ("config.json", {"hidden_act": "nonsense"}, "config.json: no model can be made of it"),
        ("config.json", {"num_hidden_layers": 3}, "safetensors is not this draft: lacks model.la"),
        ("config.json", {"num_hidden_layers": 1}, "has an unknown model.layers.1"),
        ("config.json", {"intermediate_size": 50}, r"is \(48, 32\) where config.json says \(50, "),
    ],
)
def test_a_wrong_description_is_named(
    tiny: Callable[..., Lens], tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    lens = tiny("llama")
    folder = saved(lens, tmp_path / "draft")
    edit(folder / file, **changes)
    with pytest.raises(SwitchSDError, match=message):
        load_draft(folder, lens)


def broken(weights: dict[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
    changed = dict(weights)
    if what == "lacks model.norm.weight":
        del changed["model.norm.weight"]
    elif what == "unknown model.extra":
        changed["model.extra"] = torch.zeros(1)
    elif what == "unknown lm_head.weight":
        changed["lm_head.weight"] = torch.zeros(32, 32)
    elif what == "config.json says":
        changed["model.norm.weight"] = torch.zeros(31)
    elif what == "is in torch.int64":
        changed["model.norm.weight"] = torch.zeros(32, dtype=torch.int64)
    elif what == "drafts all tokens":
        del changed["draft_ids"]
    elif what == "no ascending token ids":
        changed["draft_ids"] = changed["draft_ids"].flip(0)
    elif what == "draft_ids are no":
        changed["draft_ids"] = changed["draft_ids"] + 17
    elif what == "NaN":
        changed["model.norm.weight"] = torch.full((32,), torch.nan)
    return changed


@pytest.mark.parametrize(
    "what",
    [
        *("lacks model.norm.weight", "unknown model.extra", "unknown lm_head.weight", "NaN"),
        *("config.json says", "is in torch.int64", "drafts all tokens", "no ascending token ids"),
        "draft_ids are no",
    ],
)
def test_wrong_weights_are_named(tiny: Callable[..., Lens], tmp_path: Path, what: str) -> None:
    lens = tiny("llama")
    file = saved(lens, tmp_path / "draft") / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(file).items()}
    save_file(broken(weights, what), file)
    with pytest.raises(SwitchSDError, match=what):
        load_draft(file.parent, lens)


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_named(tiny: Callable[..., Lens], tmp_path: Path, name: str) -> None:
    lens = tiny("llama")
    folder = saved(lens, tmp_path / "draft")
    whole = (folder / name).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"[]" if name.endswith("json") else b"x" * 99):
        (folder / name).write_bytes(damaged)
        with pytest.raises(SwitchSDError, match=name):
            load_draft(folder, lens)
    (folder / name).unlink()
    with pytest.raises(SwitchSDError, match=f"no SPS draft in .*it has no {name}"):
        load_draft(folder, lens)
    (folder / name).write_bytes(whole)
    load_draft(folder, lens)


def test_no_code_is_fetched(
    tiny: Callable[..., Lens], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = tiny("llama")
    folder = saved(lens, tmp_path / "draft")
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    edit(
        folder / "config.json",
        auto_map={"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"},
        attn_implementation="someone/their-kernel",
        _attn_implementation="someone/their-kernel",
    )
    assert load_draft(folder, lens).attention == "sdpa"
    assert not (tmp_path / "sprung").exists()
