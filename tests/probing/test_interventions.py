"""Edits change what the model goes on with, and gradients are those of finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.interventions import adding_site, differentiable_forward, edited
from switchsd.probing.lens import Lens

IDS = torch.tensor([[3, 1, 4, 1, 5, 9]])
KINDS = ("llama", "qwen3", "gemma3", "gpt2")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", ["hook_resid_pre", "hook_resid_post", "hook_attn_out",
                                    "hook_mlp_out", "attn.hook_z"])  # fmt: skip
def test_an_edit_is_seen_and_gone_on_from(
    tiny: Callable[..., Lens], kind: str, stream: str
) -> None:
    lens, site, last = tiny(kind), f"blocks.1.{stream}", "blocks.2.hook_resid_post"
    clean = lens.forward(IDS, sites=[site, last])
    with edited(lens, {site: lambda value: value + 1.0}):
        done = lens.forward(IDS, sites=[site, last])
    torch.testing.assert_close(done.streams[site], clean.streams[site] + 1.0)
    assert not torch.allclose(done.streams[last], clean.streams[last], atol=1e-3)
    with edited(lens, {site: lambda value: value}):
        torch.testing.assert_close(lens.forward(IDS).logits, clean.logits, rtol=0, atol=0)
    torch.testing.assert_close(lens.forward(IDS).logits, clean.logits, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_adding_to_the_middle_of_a_block_moves_mlp_and_residual_alike(
    tiny: Callable[..., Lens], kind: str
) -> None:
    lens = tiny(kind)
    sites = [f"blocks.1.{s}" for s in ("hook_resid_mid", "hook_mlp_out", "hook_resid_post")]
    where = adding_site(sites[0])
    clean = lens.forward(IDS, sites=sites).streams
    vector = torch.linspace(-1, 1, lens.d_model)
    with edited(lens, {where: lambda value: value + vector}):
        moved = lens.forward(IDS, sites=sites).streams
    torch.testing.assert_close(moved[sites[0]], clean[sites[0]] + vector)
    torch.testing.assert_close(moved[sites[2]], moved[sites[0]] + moved[sites[1]])
    assert not torch.allclose(moved[sites[1]], clean[sites[1]], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_differences(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind)
    lens.model.double()
    sites = ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out"]
    run = differentiable_forward(lens, IDS, nudge=sites, read=["blocks.2.hook_resid_mid"])
    figures = (run.logits[0, 7], run.read["blocks.2.hook_resid_mid"][0, 4, 3])
    for number, figure in enumerate(figures):
        found = run.gradients(figure)
        for site, place in ((sites[0], (0, 2, 1, 3)), (sites[1], (0, 1, 5))):

            def moved(by: float, at: str = site, where: Any = place, of: int = number) -> float:
                def nudge(value: torch.Tensor) -> torch.Tensor:
                    value = value.clone()
                    value[where] += by
                    return value

                with edited(lens, {at: nudge}):
                    done = lens.forward(IDS, sites=["blocks.2.hook_resid_mid"])
                assert done.logits is not None
                read = done.streams["blocks.2.hook_resid_mid"][0, 4, 3]
                return float(done.logits[0, -1, 7] if of == 0 else read)

            slope = (moved(1e-3) - moved(-1e-3)) / 2e-3  # norms compute in float32
            assert float(found[site][place]) == pytest.approx(slope, rel=0.01, abs=1e-3)


def test_frozen_weights_do_not_hide_gradients(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    lens.model.requires_grad_(False)
    run = differentiable_forward(lens, IDS, nudge=["blocks.0.attn.hook_z"])
    assert run.gradients(run.logits[0, 7])["blocks.0.attn.hook_z"].abs().sum() > 0


def test_what_cannot_be_edited_is_named(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    for site, words in (
        ("blocks.1.hook_resid_mid", "cannot be edited"),
        ("blocks.9.hook_mlp_out", "layers 0–2"),
        ("blocks.1.attn.hook_pattern", "bridge"),
    ):
        with pytest.raises(SwitchSDError, match=words), edited(lens, {site: lambda v: v}):
            pass
    with (
        pytest.raises(SwitchSDError, match="the edit at"),
        edited(lens, {"blocks.1.hook_mlp_out": lambda value: value[..., :1]}),
    ):
        lens.forward(IDS)
    with pytest.raises(SwitchSDError, match="nothing can be added"):
        adding_site("blocks.1.attn.hook_pattern")


def test_the_bridge_is_refused(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama", backend="bridge")
    with pytest.raises(SwitchSDError, match="live backend"), edited(lens, {}):
        pass
    with pytest.raises(SwitchSDError, match="live backend"):
        differentiable_forward(lens, IDS, nudge=["blocks.0.hook_mlp_out"])
