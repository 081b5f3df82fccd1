"""Change a model's streams while it runs, or follow gradients back to them (live backend).

An edit takes a stream's value and gives the value the model goes on with. `hook_resid_mid` is read
by the MLP only, the model adds past it: add at the same layer's `hook_attn_out` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import SwitchSDError
from .anatomy import Site, find_blocks
from .lens import Lens

Edit = Callable[[Tensor], Tensor]
"""[batch, pos, width] → the same shape; `attn.hook_z` comes as [batch, pos, n_heads, d_head]."""

EDITABLE = ("hook_resid_pre", "hook_resid_post", "hook_attn_out", "hook_mlp_out", "attn.hook_z")


@contextmanager
def edited(lens: Lens, edits: Mapping[str, Edit]) -> Iterator[None]:
    """Inside, every forward of the model goes on with what the edits return.

    Args:
        lens: on the live backend.
        edits: site → edit. Sites that are read see the edited value.

    Raises:
        SwitchSDError: the bridge backend, an unknown site, one that cannot be edited, or (in the
            forward) an edit that changes the shape.
    """
    _check(lens, list(edits))
    with ExitStack() as hooks:
        for name, edit in edits.items():
            hooks.callback(_hook(lens, name, _checked(name, edit)).remove)
        yield


@dataclass(frozen=True)
class Differentiable:
    """A forward that gradients can be taken of.

    Attributes:
        logits: of the last position.
        read: site → value, inside the graph.
        nudges: site → zeros added to the stream; the gradient for them is the stream's.
    """

    logits: Float[Tensor, "batch d_vocab"]
    read: dict[str, Tensor]
    nudges: dict[str, Tensor]

    def gradients(self, figure: Tensor) -> dict[str, Tensor]:
        """Gradient of one number for every nudged stream; zeros where it does not depend on it."""
        found = torch.autograd.grad(
            figure, list(self.nudges.values()), retain_graph=True, materialize_grads=True
        )
        return dict(zip(self.nudges, found, strict=True))


def differentiable_forward(
    lens: Lens, ids: Int[Tensor, "batch pos"], *, nudge: Sequence[str], read: Sequence[str] = ()
) -> Differentiable:
    """Run the model so that gradients for some streams can be had.

    Args:
        lens: on the live backend.
        ids: token ids.
        nudge: streams that gradients are wanted for.
        read: sites whose value is wanted; any that the live backend has.

    Raises:
        SwitchSDError: the bridge backend, or a site that is unknown or cannot be edited.
    """
    _check(lens, nudge)
    lens.check_sites(read)
    nudges: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}

    def nudging(name: str) -> Edit:
        def add(value: Tensor) -> Tensor:
            nudges[name] = torch.zeros_like(value, requires_grad=True)
            return value + nudges[name]

        return add

    def reading(name: str) -> Edit:
        def keep(value: Tensor) -> Tensor:
            values[name] = value
            return value

        return keep

    with ExitStack() as hooks, torch.enable_grad():
        for name in nudge:
            hooks.callback(_hook(lens, name, nudging(name)).remove)
        for name in read:
            hooks.callback(_hook(lens, name, reading(name)).remove)
        logits = lens.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    return Differentiable(logits, values, nudges)


def adding_site(site: str) -> str:
    """Where to add so that `site` moves by as much and the model goes on with it.

    Raises:
        SwitchSDError: attention patterns, which are nothing to add to.
    """
    parsed = Site.parse(site)
    if parsed.stream == "hook_resid_mid":
        return str(Site(parsed.layer, "hook_attn_out"))
    if parsed.stream not in EDITABLE:
        raise SwitchSDError(f"nothing can be added at {site}; use {', '.join(EDITABLE)}")
    return site


def _check(lens: Lens, sites: Sequence[str]) -> None:
    if lens.backend != "live":
        raise SwitchSDError("interventions need the live backend: load(model, backend='live')")
    lens.check_sites(sites)
    for name in sites:
        if Site.parse(name).stream not in EDITABLE:
            raise SwitchSDError(
                f"{name} cannot be edited, the model does not go on from it; use "
                f"{', '.join(EDITABLE)}"
            )


def _checked(name: str, edit: Edit) -> Edit:
    def checked(value: Tensor) -> Tensor:
        changed = edit(value)
        if changed.shape != value.shape:  # it would broadcast silently
            raise SwitchSDError(
                f"the edit at {name} made {tuple(changed.shape)} of {tuple(value.shape)}"
            )
        return changed

    return checked


def _hook(lens: Lens, name: str, edit: Edit) -> Any:
    site = Site.parse(name)
    module, side = find_blocks(lens.model)[site.layer].streams[site.stream]

    def apply(value: Tensor) -> Tensor:
        if site.stream != "attn.hook_z":
            return edit(value)
        return edit(value.unflatten(-1, (lens.n_heads, lens.d_head))).flatten(-2)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (apply(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": apply(kwargs["hidden_states"])}

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, Tensor):
            return apply(output)
        return (apply(output[0]), *output[1:])

    if side == "in":
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)
