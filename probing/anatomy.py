"""Where the TransformerLens hook points lie inside a Hugging Face decoder block."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from ..errors import SwitchSDError

STREAMS = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
"""Streams of width d_model. Besides: `attn.hook_z` (heads × d_head), `mlp.hook_post` (neurons), and
on the bridge `attn.hook_pattern` and `attn.hook_v` (key heads × d_head)."""

BRIDGE_ONLY = ("attn.hook_pattern", "attn.hook_v")
"""Streams that fused attention never shows."""

_SITE = re.compile(
    r"blocks\.(\d+)\.(hook_resid_pre|hook_resid_mid|hook_resid_post|hook_attn_out|"
    r"hook_mlp_out|attn\.hook_z|attn\.hook_v|attn\.hook_pattern|mlp\.hook_post)"
)


@dataclass(frozen=True)
class Site:
    """A (layer, stream), named by its TransformerLens hook."""

    layer: int
    stream: str

    @classmethod
    def parse(cls, name: str) -> Site:
        """Read `blocks.<layer>.<stream>`; anything else is a `SwitchSDError`."""
        match = _SITE.fullmatch(name)
        if match is None:
            raise SwitchSDError(
                f"unknown site {name!r}: write blocks.<layer>.<stream> with a stream of "
                f"{', '.join(STREAMS)}, attn.hook_z, mlp.hook_post or (bridge only) "
                f"{', '.join(BRIDGE_ONLY)}"
            )
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"blocks.{self.layer}.{self.stream}"


@dataclass(frozen=True)
class Block:
    """The modules of one block whose inputs or outputs are the named streams.

    Each stream is a (module, side) pair: "in" reads the module's first input, "out" its output.
    """

    streams: dict[str, tuple[nn.Module, str]]


def find_blocks(model: nn.Module) -> list[Block]:
    """The blocks of a causal language model, in order.

    Raises:
        SwitchSDError: the block layout is not one this lab knows (parallel attention and MLP,
            encoder-decoders); the bridge backend may still know it.
    """
    base = getattr(model, "base_model", model)
    for path in ("layers", "h", "decoder.layers"):
        stack = base
        for part in path.split("."):
            stack = getattr(stack, part, None)
        if isinstance(stack, nn.ModuleList):
            return [_block(layer) for layer in stack]
    raise SwitchSDError(f"{type(model).__name__} has no list of decoder blocks that can be hooked")


def _block(layer: nn.Module) -> Block:
    attn = getattr(layer, "self_attn", None) or getattr(layer, "attn", None)
    mlp = getattr(layer, "mlp", None)
    out_proj = getattr(attn, "o_proj", None) or getattr(attn, "c_proj", None)
    if attn is None or mlp is None or out_proj is None:
        raise SwitchSDError(f"{type(layer).__name__}: no attention and MLP sublayer to hook")
    attn_out: nn.Module = attn
    mlp_out: nn.Module = mlp
    mid: nn.Module | None
    norms = dict(layer.named_children())
    if "pre_feedforward_layernorm" in norms:  # Gemma 2 and 3: norms after both sublayers
        mid, attn_out = norms["pre_feedforward_layernorm"], norms["post_attention_layernorm"]
        mlp_out = norms["post_feedforward_layernorm"]
    elif "post_self_attn_layernorm" in norms and "post_mlp_layernorm" in norms:  # GLM-4
        mid, attn_out = norms.get("post_attention_layernorm"), norms["post_self_attn_layernorm"]
        mlp_out = norms["post_mlp_layernorm"]
    elif "post_feedforward_layernorm" in norms:  # OLMo 2: the MLP reads the raw residual
        mid, attn_out = mlp, norms["post_attention_layernorm"]
        mlp_out = norms["post_feedforward_layernorm"]
    else:
        mid = norms.get("post_attention_layernorm", norms.get("ln_2"))
    if mid is None or hasattr(layer, "residual_multiplier"):
        raise SwitchSDError(
            f"{type(layer).__name__}: the residual stream between attention and MLP is not where "
            "this lab knows to look (parallel or scaled residual)"
        )
    streams = {
        "hook_resid_pre": (layer, "in"),
        "hook_resid_mid": (mid, "in"),
        "hook_resid_post": (layer, "out"),
        "hook_attn_out": (attn_out, "out"),
        "hook_mlp_out": (mlp_out, "out"),
        "attn.hook_z": (out_proj, "in"),
    }
    down = getattr(mlp, "down_proj", None) or getattr(mlp, "c_proj", None)
    if isinstance(down, nn.Module):  # a mixture of experts has no one projection
        streams["mlp.hook_post"] = (down, "in")
    return Block(streams)
