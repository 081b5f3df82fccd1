"""Shipped drafts are found by the target's fingerprint; each policy gets the one it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.decoding.drafters.draft_checkpoint import save_draft
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafts import find_drafter
from switchsd.decoding.eagle3.checkpoint import load_head, save_head
from switchsd.decoding.eagle3.drafter import Eagle3, TreeShape
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.tiny import random_fit
from switchsd.decoding.neural import TREE, neural_drafter, read_draft
from switchsd.decoding.policies import POLICIES, Options, build_policy
from switchsd.decoding.shipped import (
    SHIPPED,
    find_shipped,
    has_shipped_draft,
    has_shipped_head,
    shipped_draft,
    shipped_head,
    weights_digest,
    weights_mib,
    weights_of,
)
from switchsd.decoding.training.sps_task import SpsRecipe, warm_draft
from switchsd.probing.lens import Lens
from tiny_models import probe_for, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COPYING = ("copyspec", "suffix", "bandit-ucb", "bandit-exp3", "switchsd")


def ship(lens: Lens, folder: Path, *, seed: int = 0) -> Path:
    """Both drafts of a target, as the package has them."""
    head = random_head(lens, draft_vocab_size=20, seed=seed, std=0.2)
    save_head(head, folder / "eagle3", target=lens, about={"steps": 7})
    save_draft(warm_draft(lens, SpsRecipe()), folder / "sps", target=lens, about={})
    return folder.parent


def test_each_model_gets_its_own(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    one, other = tiny("llama"), tiny("llama", seed=5)
    ship(other, tmp_path / "a", seed=1)
    ship(one, tmp_path / "b", seed=2)
    for lens, name, seed in ((one, "b", 2), (other, "a", 1)):
        assert find_shipped(lens, "eagle3", folder=tmp_path) == tmp_path / name / "eagle3"
        assert find_shipped(lens, "sps", folder=tmp_path) == tmp_path / name / "sps"
        head = shipped_head(lens, folder=tmp_path)
        truth = random_head(lens, draft_vocab_size=20, seed=seed, std=0.2)
        assert torch.equal(head.fc.weight, truth.fc.weight)
        draft = shipped_draft(lens, folder=tmp_path)
        embedding = draft.model.get_input_embeddings().weight
        assert embedding.data_ptr() == lens.model.get_input_embeddings().weight.data_ptr()
    card = json.loads((tmp_path / "b" / "eagle3" / "draft.json").read_text())
    assert card == {
        "kind": "eagle3", "target": one.name, "fingerprint": one.fingerprint, "about": {"steps": 7},
    }  # fmt: skip
    stranger = tiny("gpt2")
    assert not has_shipped_head(stranger, folder=tmp_path)
    assert not has_shipped_draft(stranger, folder=tmp_path)
    with pytest.raises(SwitchSDError, match=r"switchsd draft train eagle3 --model tiny-gpt2"):
        shipped_head(stranger, folder=tmp_path)
    with pytest.raises(SwitchSDError, match=r"switchsd draft train sps --model tiny-gpt2"):
        shipped_draft(stranger, folder=tmp_path)


def test_a_digest_knows_the_weights(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    ship(lens, tmp_path / "a", seed=1)
    ship(lens, tmp_path / "b", seed=1)
    ship(lens, tmp_path / "c", seed=2)
    a, b, c = (weights_digest(tmp_path / name / "eagle3") for name in "abc")
    assert a == b != c
    assert [f.name for f in weights_of(tmp_path / "a" / "eagle3")] == ["model.safetensors"]


def test_a_damaged_card_is_named(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    ship(lens, tmp_path / "a")
    for text, message in (("{", "is damaged"), ("[]", "no card of a draft")):
        (tmp_path / "a" / "eagle3" / "draft.json").write_text(text)
        with pytest.raises(SwitchSDError, match=message):
            shipped_head(lens, folder=tmp_path)


def test_every_policy_gets_its_drafter(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    folder = ship(lens, tmp_path / "a")
    got = {name: neural_drafter(name, lens, folder=folder) for name in POLICIES}
    assert got["vanilla"] is got["pld"] is None
    chains = [got[name] for name in ("eagle3", *COPYING)]
    assert all(isinstance(d, Eagle3) and d.tree is None and d.gamma == 5 for d in chains)
    assert len(set(map(id, chains))) == len(chains)  # each holds a text of its own
    tree, sps = got["eagle3-tree"], got["sps"]
    assert isinstance(tree, Eagle3)
    assert tree.tree == TREE
    assert isinstance(sps, DraftModel)
    assert sps.gamma == 4
    wanted = neural_drafter("eagle3-tree", lens, tree=TreeShape(6, 1, 2), folder=folder)
    assert isinstance(wanted, Eagle3)
    assert wanted.tree == TreeShape(6, 1, 2)
    for name in ("eagle3", "sps", "switchsd"):
        drafter: Any = neural_drafter(name, lens, gamma=2, folder=folder)
        assert drafter.gamma == 2
    truth = generate(lens, PROMPT, "vanilla", max_new_tokens=24, eos_ids=()).ids
    for name, drafter in got.items():
        probe = probe_for(lens)
        fit = random_fit(probe, drafter) if name == "cost-aware" else None
        options = Options(probe=probe, neural=drafter, fit=fit)
        policy = build_policy(name, options)
        result = generate(lens, PROMPT, policy, max_new_tokens=24, eos_ids=())
        assert result.ids == truth
        drafted = [s for s in result.trace.steps if s.path == "neural"]
        assert bool(drafted) == (name not in ("vanilla", "pld"))


def test_without_shipped_drafts(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    assert [neural_drafter(name, lens, folder=tmp_path) for name in COPYING] == [None] * 5
    for name in ("eagle3", "eagle3-tree", "sps"):
        with pytest.raises(SwitchSDError, match="switchsd draft train"):
            neural_drafter(name, lens, folder=tmp_path)
        with pytest.raises(SwitchSDError, match="switchsd draft train"):
            find_drafter(name, lens, None)  # none is shipped for a tiny model
        with pytest.raises(SwitchSDError, match="needs a draft"):
            build_policy(name, Options(neural=find_drafter(name, lens, "none")))
    assert find_drafter("switchsd", lens, None) is None
    assert find_drafter("switchsd", lens, "none") is None
    with pytest.raises(SwitchSDError, match="unknown policy 'nope'"):
        neural_drafter("nope", lens)


def test_a_named_draft_is_told_by_what_it_holds(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    folder = ship(lens, tmp_path / "a").joinpath("a")
    bare = save_head(random_head(lens), tmp_path / "published")  # as hub heads are: no card
    tiny_model("llama", seed=7).save_pretrained(tmp_path / "model")
    for policy in ("eagle3", "switchsd"):
        for head in (folder / "eagle3", bare):
            assert isinstance(find_drafter(policy, lens, str(head)), Eagle3)
    for policy in ("sps", "switchsd"):
        assert isinstance(find_drafter(policy, lens, str(folder / "sps"), 3), DraftModel)
    assert read_draft(tmp_path / "model", lens) is None
    assert read_draft(Path("org/some-model"), lens) is None
    with pytest.raises(SwitchSDError, match="use it with eagle3"):
        find_drafter("sps", lens, str(bare))
    with pytest.raises(SwitchSDError, match="use it with sps"):
        find_drafter("eagle3", lens, str(folder / "sps"))


def test_a_head_for_other_weights_is_warned_of(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens, finetuned = tiny("llama"), tiny("llama", seed=5)
    ship(lens, tmp_path / "a")
    with pytest.warns(UserWarning, match="trained for tiny-llama"):
        load_head(tmp_path / "a" / "eagle3", finetuned)


def test_artefacts_are_in_the_package() -> None:
    import tomllib

    root = SHIPPED.parent.parent
    globs = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    packaged = {f for glob in globs["package-data"]["switchsd"] for f in root.glob(glob)}
    files = {file for file in SHIPPED.rglob("*") if file.is_file() and file.name[0] != "."}
    assert files <= packaged


@pytest.mark.model
@pytest.mark.parametrize(("kind", "policy", "most"), [("eagle3", "eagle3", 24), ("sps", "sps", 16)])
def test_the_default_models_drafts_are_shipped_and_serve(
    lens: Lens, kind: Any, policy: str, most: int
) -> None:
    folder = find_shipped(lens, kind)
    if folder is None:
        pytest.skip(f"no {kind} draft is shipped yet")
    assert folder == SHIPPED / lens.name / kind
    assert weights_mib(folder) <= most
    prompt = lens.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a Python function that adds two numbers."}],
        add_generation_prompt=True, return_dict=False,
    )  # fmt: skip
    truth = generate(lens, prompt, "vanilla", max_new_tokens=48).ids
    drafting = build_policy(policy, Options(neural=neural_drafter(policy, lens)))
    result = generate(lens, prompt, drafting, max_new_tokens=48)
    assert result.ids == truth
    accepted = [s.accepted for s in result.trace.steps if s.path == "neural"]
    assert sum(accepted) / len(accepted) > 0.5
