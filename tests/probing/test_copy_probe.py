"""The frozen probe: round trip, damage, and another model's probe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from tolerance import close


def make(lens: Lens, **changes) -> CopyProbe:
    values = {
        "site": "blocks.1.hook_resid_mid",
        "label_offset": 2,
        "tau": 0.4,
        "weight": torch.arange(lens.d_model).float() / 100,
        "bias": -0.3,
        "model": lens.name,
        "fingerprint": lens.fingerprint,
        "metrics": {"auroc": 0.9},
    }
    return CopyProbe(**{**values, **changes})


def test_round_trip(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    probe = make(lens)
    probe.save(tmp_path / "p")
    again = CopyProbe.load(tmp_path / "p", lens)
    assert again.describe() == probe.describe()
    x = torch.randn(5, lens.d_model)
    assert torch.equal(again.weight, probe.weight)
    # not bit for bit: the weights read back lie elsewhere in memory, which some kernels' sums show
    close(again.score(x), probe.score(x), length=lens.d_model)
    expected = 1 / (1 + torch.exp(-(x @ probe.weight - 0.3)))
    assert torch.allclose(probe.score(x), expected, atol=1e-6)
    assert {p.suffix for p in (tmp_path / "p").iterdir()} == {".json", ".safetensors"}


def test_heads_may_come_apart(tiny: Callable[..., Lens]) -> None:
    lens = tiny("qwen3")
    site = "blocks.1.attn.hook_z"
    probe = make(lens, site=site, weight=torch.randn(lens.site_width(site)))
    z = torch.randn(3, lens.n_heads, lens.d_head)
    close(probe.score(z), probe.score(z.flatten(-2)), length=z[0].numel())
    probe.check(lens)


def test_another_model_is_refused(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    make(tiny("llama")).save(tmp_path)
    with pytest.raises(SwitchSDError, match="trained on"):
        CopyProbe.load(tmp_path, tiny("llama", seed=3))


def test_damage_is_named(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    with pytest.raises(SwitchSDError, match="no probe in"):
        CopyProbe.load(tmp_path)
    make(lens).save(tmp_path)
    good = (tmp_path / "probe.safetensors").read_bytes()
    for bad in (good[:-7], b"", b"\x80\x04pickle"):
        (tmp_path / "probe.safetensors").write_bytes(bad)
        with pytest.raises(SwitchSDError, match="damaged"):
            CopyProbe.load(tmp_path, lens)
    (tmp_path / "probe.safetensors").write_bytes(good)
    about = json.loads((tmp_path / "probe.json").read_text())
    for change in ({"site": None}, {"surprise": 1}, {"width": 7}):
        (tmp_path / "probe.json").write_text(json.dumps({**about, **change}))
        with pytest.raises(SwitchSDError):
            CopyProbe.load(tmp_path, lens)
    (tmp_path / "probe.json").write_text("{")
    with pytest.raises(SwitchSDError, match="damaged"):
        CopyProbe.load(tmp_path, lens)


def test_nonsense_is_refused(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    for change in ({"tau": 1.2}, {"label_offset": 3}, {"site": "layer 3"},
                   {"weight": torch.tensor([float("nan")])}):  # fmt: skip
        with pytest.raises(SwitchSDError):
            make(lens, **change)
    with pytest.raises(SwitchSDError, match="reads 5 numbers"):
        make(lens, weight=torch.ones(5)).check(lens)
