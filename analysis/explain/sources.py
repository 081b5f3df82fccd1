"""Where a head's share of the probe's logit comes from: A[q, k] · (v_k W_O · w) for each token k.

A head's output at q is a sum over the tokens it attends to, so its part of the logit splits again,
exactly. GQA: query heads of a group share v, each with its own pattern and W_O.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import SwitchSDError
from ...probing.anatomy import Site
from ...probing.lens import Lens
from .attribution import layers_below, read_rows
from .copying import head_output
from .reading import Reading


def source_shares(lens: Lens, ids: Sequence[int], reading: Reading, position: int) -> pd.DataFrame:
    """Split every head's part at one position by source token.

    Args:
        lens: the model, on the bridge.
        ids: the text.
        reading: of a linear probe.
        position: where it reads.

    Returns:
        `layer`, `head`, `source` (position), `attention`, `value` (log-odds); the values of a head
        sum to its part.

    Raises:
        SwitchSDError: the live backend, a position outside the text, or a site without heads.
    """
    heads = head_layers(reading.site)
    sites = [f"blocks.{i}.attn.{stream}" for i in heads for stream in ("hook_pattern", "hook_v")]
    streams = source_streams(lens, ids, sites, position)
    rows = []
    for layer in heads:
        pattern = streams[f"blocks.{layer}.attn.hook_pattern"]
        shares = head_shares(lens, layer, pattern, streams[f"blocks.{layer}.attn.hook_v"], reading)
        for head in range(lens.n_heads):
            rows.append(
                pd.DataFrame(
                    {
                        "layer": layer,
                        "head": head,
                        "source": range(position + 1),
                        "attention": pattern[head].float().cpu().numpy(),
                        "value": shares[head].cpu().numpy(),
                    }
                )
            )
    return pd.concat(rows, ignore_index=True)


def head_layers(site: str) -> range:
    """The layers whose heads are parts of a site's logit.

    Raises:
        SwitchSDError: a site that no head writes to.
    """
    at = Site.parse(site)
    if at.stream in ("hook_attn_out", "attn.hook_z"):
        return range(at.layer, at.layer + 1)
    if not at.stream.startswith("hook_resid") or not layers_below(site)[0]:
        raise SwitchSDError(f"no head writes to {site}; take a probe of the residual stream")
    return range(layers_below(site)[0])


def source_streams(
    lens: Lens, ids: Sequence[int], sites: Sequence[str], position: int
) -> dict[str, Tensor]:
    """Patterns at one query [head, key], and values of every token up to it [key, kv head, d]."""
    if lens.backend != "bridge":
        raise SwitchSDError("attention by source token needs the bridge: load(…, backend='bridge')")
    if not 0 <= position < len(ids):
        raise SwitchSDError(f"position {position} lies outside the {len(ids)} tokens of the text")
    seen = list(ids)[: position + 1]  # what comes later changes nothing here
    values = read_rows(lens, seen, [s for s in sites if s.endswith("hook_v")], range(len(seen)))
    patterns = read_rows(lens, seen, [s for s in sites if s.endswith("pattern")], [position])
    return values | {site: pattern[0] for site, pattern in patterns.items()}


def head_shares(
    lens: Lens,
    layer: int,
    pattern: Float[Tensor, "head key"],
    values: Float[Tensor, "key kv_head d_head"],
    reading: Reading,
) -> Float[Tensor, "head key"]:
    """A[q, k] · (v_k W_O · w) of every head of a layer, in double precision."""
    w = reading.weight.to(values.device).double()
    if Site.parse(reading.site).stream == "attn.hook_z":
        direction = w.unflatten(0, (lens.n_heads, lens.d_head))
    else:
        direction = head_output(lens, layer).weight.double() @ w
    of_head = values.double().repeat_interleave(lens.n_heads // values.shape[1], dim=1)
    return pattern.double() * torch.einsum("khe,he->hk", of_head, direction)
