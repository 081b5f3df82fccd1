"""A linear probe's logit, split exactly into what was added into the stream it reads.

The residual stream is a sum: the embedding, what every head and every MLP below wrote, and the
attention's biases. A linear probe reads it without a norm in between, so its logit is the same sum,
each part multiplied by the probe's weights; the probe's own bias, with the scaler folded in, is the
last part. At `hook_attn_out` and `attn.hook_z` the parts are that layer's heads, at `hook_mlp_out`
its neurons. Nothing is linearised or estimated; float32 rounding aside the parts sum to the logit
(`Attribution.max_relative_error`).

A part says what was written, not why, nor what would happen without it: that is `causal`'s affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.anatomy import Site
from ...probing.lens import Lens
from .copying import head_output, neuron_output
from .reading import Reading

KINDS = ("embedding", "head", "mlp", "neuron", "bias")
"""What a part can be. `bias` is the probe's own or a layer's attention bias."""

UNIT = 1.0
"""Errors are relative to the logit, or to one unit of log-odds where the logit is smaller."""


@dataclass(frozen=True)
class Attribution:
    """The parts of a probe's logit at some positions of one text.

    Attributes:
        site: where the probe reads.
        positions: where in the text.
        parts: one row a part: `part` (its name), `kind` (of `KINDS`), `layer`, `index` (head or
            neuron; −1 where there is none).
        values: log-odds that each part adds.
        logit: the probe's logit, computed from the stream at the site in float32 as it is served.
    """

    site: str
    positions: Int[np.ndarray, " row"]
    parts: pd.DataFrame
    values: Float[np.ndarray, "row part"]
    logit: Float[np.ndarray, " row"]

    @property
    def max_relative_error(self) -> float:
        """The largest |Σ parts − logit| / max(|logit|, `UNIT`)."""
        error = np.abs(self.values.sum(1) - self.logit)
        return float((error / np.maximum(np.abs(self.logit), UNIT)).max())

    def at(self, position: int) -> pd.DataFrame:
        """The parts at one position with their `value` and `share` of the logit.

        Raises:
            SwitchSDError: that position was not attributed.
        """
        row = np.flatnonzero(self.positions == position)
        if not len(row):
            raise SwitchSDError(f"position {position} was not attributed")
        value = self.values[row[0]]
        return self.parts.assign(value=value, share=value / self.logit[row[0]])


def attribute(
    lens: Lens, ids: Sequence[int], reading: Reading, positions: Sequence[int]
) -> Attribution:
    """Split a linear probe's logit at these positions of a text.

    Args:
        lens: the model, on either backend.
        ids: the text.
        reading: `probe_reading.reading(probe)`.
        positions: where the probe reads.

    Raises:
        SwitchSDError: a position outside the text, a site without parts, or a model whose heads or
            MLPs do not add up to its residual stream.
    """
    sites = part_sites(reading.site)
    streams = read_rows(lens, ids, [*sites, reading.site], positions)
    at_site = streams[reading.site].flatten(1)
    logit = at_site.float() @ reading.weight.to(at_site.device) + reading.bias
    weights = reading.weight.to(at_site.device).expand(len(at_site), -1)
    parts, values = split(lens, reading.site, streams, weights)
    parts.append(("bias", "bias", -1, -1))
    values.append(torch.full((len(at_site), 1), reading.bias, device=at_site.device))
    return Attribution(
        reading.site,
        np.asarray(positions),
        pd.DataFrame(parts, columns=["part", "kind", "layer", "index"]),
        torch.cat([value.double() for value in values], 1).cpu().numpy(),
        logit.double().cpu().numpy(),
    )


def part_sites(site: str) -> list[str]:
    """The hook points whose values are the parts of a site.

    Raises:
        SwitchSDError: a site that is no sum of parts.
    """
    at = Site.parse(site)
    if at.stream in ("hook_attn_out", "attn.hook_z"):
        return [f"blocks.{at.layer}.attn.hook_z"]
    if at.stream == "hook_mlp_out":
        return [f"blocks.{at.layer}.mlp.hook_post"]
    if not at.stream.startswith("hook_resid"):
        raise SwitchSDError(
            f"a logit at {site} is no sum over heads or MLPs; take a probe at hook_resid_pre, "
            "hook_resid_mid, hook_resid_post, hook_attn_out, hook_mlp_out or attn.hook_z"
        )
    heads, mlps = layers_below(site)
    return [
        "blocks.0.hook_resid_pre",
        *(f"blocks.{layer}.attn.hook_z" for layer in range(heads)),
        *(f"blocks.{layer}.hook_mlp_out" for layer in range(mlps)),
    ]


def layers_below(site: str) -> tuple[int, int]:
    """How many layers' heads, and how many layers' MLPs, lie below a site of the residual stream.

    At `hook_resid_mid` the site's own layer counts its heads, not its MLP.
    """
    at = Site.parse(site)
    return at.layer + (at.stream != "hook_resid_pre"), at.layer + (at.stream == "hook_resid_post")


def read_rows(
    lens: Lens, ids: Sequence[int], sites: Sequence[str], positions: Sequence[int]
) -> dict[str, Float[Tensor, "row ..."]]:
    """Streams of one text at some positions, in their order.

    Raises:
        SwitchSDError: a position outside the text, or none; a text beyond the model's context.
    """
    wrong = [position for position in positions if not 0 <= position < len(ids)]
    if wrong or not len(positions):
        raise SwitchSDError(
            f"position {wrong[0]} lies outside the {len(ids)} tokens of the text"
            if wrong
            else "no position to attribute; name at least one"
        )
    if len(ids) > lens.n_ctx:
        raise SwitchSDError(
            f"the text has {len(ids)} tokens, the context of {lens.name} {lens.n_ctx}; shorten it"
        )
    rows = torch.zeros(1, len(ids), dtype=torch.bool, device=lens.device)
    rows[0, list(positions)] = True
    order = np.unique(np.asarray(positions), return_inverse=True)[1]
    tokens = torch.tensor([list(ids)], device=lens.device)
    streams = lens.forward(tokens, sites=list(dict.fromkeys(sites)), rows=rows, logits="none")
    return {site: stream[order] for site, stream in streams.streams.items()}


def split(
    lens: Lens,
    site: str,
    streams: dict[str, Tensor],
    weights: Float[Tensor, "row width"],
) -> tuple[list[tuple[str, str, int, int]], list[Float[Tensor, "row _"]]]:
    """The inner product of a site's stream with `weights`, part by part.

    Args:
        lens: the model.
        site: of the residual stream, `hook_attn_out`, `attn.hook_z` or `hook_mlp_out`.
        streams: of `part_sites(site)`.
        weights: of each row.

    Returns:
        (`part`, `kind`, `layer`, `index`) of every part, and its values.
    """
    at, w = Site.parse(site), weights.double()
    if at.stream == "attn.hook_z":
        z, own = streams[site].double(), w.unflatten(1, (lens.n_heads, lens.d_head))
        return _heads(at.layer, lens.n_heads), [torch.einsum("rhe,rhe->rh", z, own)]
    parts: list[tuple[str, str, int, int]] = []
    values: list[Tensor] = []

    def add(found: tuple[list[Any], list[Tensor]]) -> None:
        parts.extend(found[0])
        values.extend(found[1])

    if at.stream == "hook_attn_out":
        add(_attention(lens, at.layer, streams, w))
    elif at.stream == "hook_mlp_out":
        output = neuron_output(lens, at.layer)
        neurons = streams[f"blocks.{at.layer}.mlp.hook_post"].double()
        parts = [(f"neuron {at.layer}.{i}", "neuron", at.layer, i) for i in range(neurons.shape[1])]
        values = [neurons * (w @ output.weight.double().T)]
        add(_shared_bias("MLP bias", at.layer, output.bias, w))
    else:
        heads, mlps = layers_below(site)
        add(([("embedding", "embedding", -1, -1)], [_dot(streams["blocks.0.hook_resid_pre"], w)]))
        for layer in range(heads):
            add(_attention(lens, layer, streams, w))
            if layer < mlps:
                value = _dot(streams[f"blocks.{layer}.hook_mlp_out"], w)
                add(([(f"MLP {layer}", "mlp", layer, -1)], [value]))
    return parts, values


def _attention(
    lens: Lens, layer: int, streams: dict[str, Tensor], w: Tensor
) -> tuple[list[tuple[str, str, int, int]], list[Tensor]]:
    """Every head of a layer, and the bias that belongs to none of them."""
    output = head_output(lens, layer)
    z = streams[f"blocks.{layer}.attn.hook_z"].double()
    values = torch.einsum("rhe,hed,rd->rh", z, output.weight.double(), w)
    parts, extra = _shared_bias("attention bias", layer, output.bias, w)
    return [*_heads(layer, lens.n_heads), *parts], [values, *extra]


def _heads(layer: int, n_heads: int) -> list[tuple[str, str, int, int]]:
    return [(f"head {layer}.{head}", "head", layer, head) for head in range(n_heads)]


def _shared_bias(
    name: str, layer: int, bias: Tensor | None, w: Tensor
) -> tuple[list[tuple[str, str, int, int]], list[Tensor]]:
    if bias is None:
        return [], []
    return [(f"{name} {layer}", "bias", layer, -1)], [(w @ bias.double())[:, None]]


def _dot(stream: Float[Tensor, "row d"], w: Float[Tensor, "row d"]) -> Float[Tensor, "row 1"]:
    return (stream.double() * w).sum(1, keepdim=True)
