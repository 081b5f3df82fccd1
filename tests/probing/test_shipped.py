"""The shipped probe is found by the model's fingerprint, and only by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from switchsd.probing.shipped import SHIPPED, shipped_probe


def save(lens: Lens, folder: Path, tau: float) -> None:
    weight = torch.randn(lens.d_model)
    CopyProbe("blocks.1.hook_attn_out", 2, tau, weight, 0.1, lens.name, lens.fingerprint).save(
        folder
    )


def test_found_by_fingerprint_not_by_name(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    one, other = tiny("llama"), tiny("llama", seed=3)
    save(other, tmp_path / "a", 0.3)
    save(one, tmp_path / "b", 0.6)
    assert shipped_probe(one, folder=tmp_path).tau == 0.6
    assert shipped_probe(other, folder=tmp_path).tau == 0.3
    with pytest.raises(SwitchSDError, match="switchsd probe train"):
        shipped_probe(tiny("gpt2"), folder=tmp_path)
    with pytest.raises(SwitchSDError, match="no probe is shipped"):
        shipped_probe(one, folder=tmp_path / "nothing")


@pytest.mark.model
def test_the_default_models_probe_is_shipped_and_serves(lens: Lens) -> None:
    probe = shipped_probe(lens)
    assert probe.fingerprint == lens.fingerprint
    assert probe.metrics["auroc"] > probe.metrics["auroc_low"] > 0.7
    assert 0 < probe.tau < 1
    streams = lens.forward(torch.tensor([[5, 6, 7, 8]]), sites=[probe.site]).streams
    assert probe.score(streams[probe.site]).shape == (1, 4)
    files = list((SHIPPED / lens.name).iterdir())
    assert {file.name for file in files} == {"probe.json", "probe.safetensors"}
    assert sum(file.stat().st_size for file in files) < 20_000
