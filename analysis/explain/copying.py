"""The weights that a head or a neuron writes with, and what a head reads its values with.

Heads are numbered as the query heads; with grouped-query attention several share a key head, and
with it their value weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...data.chat import special_ids
from ...errors import SwitchSDError
from ...probing.anatomy import Block, find_blocks
from ...probing.lens import Lens
from ...progress import Progress, silent


@dataclass(frozen=True)
class Output:
    """A projection into the residual stream.

    Attributes:
        weight: [unit, d_model], or [head, d_head, d_model] for heads.
        bias: [d_model], None where the projection has none.
    """

    weight: Float[Tensor, "*units d_model"]
    bias: Float[Tensor, " d_model"] | None


def head_output(lens: Lens, layer: int) -> Output:
    """W_O of every head of a layer, with the bias they share.

    Raises:
        SwitchSDError: the heads' outputs do not add up to what the layer's attention adds to the
            residual stream (a norm follows, as in Gemma and OLMo 2).
    """
    block = _block(lens, layer)
    out_proj = block.streams["attn.hook_z"][0]
    _refuse_norm(lens, block, "hook_attn_out", out_proj, "its heads'")
    output = _output(out_proj)
    return Output(output.weight.unflatten(0, (lens.n_heads, lens.d_head)), output.bias)


def neuron_output(lens: Lens, layer: int) -> Output:
    """The weights every neuron of a layer writes with, and the layer's bias.

    Raises:
        SwitchSDError: a mixture of experts, or a norm after the MLP.
    """
    block = _block(lens, layer)
    if "mlp.hook_post" not in block.streams:
        raise SwitchSDError(
            f"{lens.name} has no one projection out of its MLP at layer {layer} (a mixture of "
            "experts?): its neurons cannot be told apart; take a residual-stream site"
        )
    down = block.streams["mlp.hook_post"][0]
    _refuse_norm(lens, block, "hook_mlp_out", down, "its neurons'")
    return _output(down)


def head_values(lens: Lens, layer: int) -> Float[Tensor, "head d_model d_head"]:
    """W_V of every query head: those of one group have the same.

    Raises:
        SwitchSDError: the lens is not on the bridge backend, or TransformerLens knows no W_V here.
    """
    weight = getattr(lens.bridge.blocks[layer].attn, "W_V", None)
    if weight is None or weight.ndim != 3:
        raise SwitchSDError(f"TransformerLens gives no value weights for {lens.name}")
    return weight.detach().repeat_interleave(lens.n_heads // weight.shape[0], dim=0)


def normed(lens: Lens, layer: int, x: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
    """What the layer's attention reads where the residual stream is x: its own norm applied."""
    children = dict(_layer(lens, layer).named_children())
    norm = children.get("input_layernorm", children.get("ln_1"))
    return x if norm is None else norm(x)  # OLMo 2 has none there


def unembedding(lens: Lens) -> Float[Tensor, "vocab d"]:
    """W_U with the gain of the last norm in it; centred where that norm centres (LayerNorm)."""
    weight = lens.model.get_output_embeddings().weight.detach()
    base = lens.model.base_model
    norm = getattr(base, "norm", getattr(base, "ln_f", None))
    if norm is None:
        raise SwitchSDError(f"{lens.name}: no last norm where this lab knows to look")
    scaled = weight * norm.weight.detach()
    return scaled - scaled.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else scaled


def _block(lens: Lens, layer: int) -> Block:
    if not 0 <= layer < lens.n_layers:
        raise SwitchSDError(f"no layer {layer}: {lens.name} has layers 0–{lens.n_layers - 1}")
    return find_blocks(lens.model)[layer]


def _layer(lens: Lens, layer: int) -> nn.Module:
    return _block(lens, layer).streams["hook_resid_pre"][0]


def _refuse_norm(lens: Lens, block: Block, stream: str, projection: nn.Module, whose: str) -> None:
    """The stream has to come from the module that holds the projection."""
    if not any(module is projection for module in block.streams[stream][0].modules()):
        raise SwitchSDError(
            f"{lens.name} has a norm between {whose} outputs and the residual stream: they do not "
            "add up, so no exact attribution exists"
        )


def _output(projection: nn.Module) -> Output:
    if not isinstance(projection, (nn.Linear, Conv1D)):
        raise SwitchSDError(f"{type(projection).__name__} is no projection this lab can read")
    weight = projection.weight.detach()
    bias = None if projection.bias is None else projection.bias.detach()
    return Output(weight if isinstance(projection, Conv1D) else weight.T, bias)


def real(values: Tensor) -> float:
    """Re Σλ / Σ|λ| of a matrix's eigenvalues: 1 if all are positive, −1 if all are negative.

    0 for a matrix without any.
    """
    size = float(values.abs().sum())
    return float(values.real.sum()) / size if size > 0 else 0.0


def copying(first: Float[Tensor, "d r"], second: Float[Tensor, "r d"]) -> float:
    """The eigenvalue copying score of `first @ second`, from the small `second @ first`.

    AB and BA have the same nonzero eigenvalues (Elhage et al. 2021, "Summarizing OV/QK matrices").
    """
    return real(torch.linalg.eigvals((second @ first).double()))


TOP = 5

_ROWS = 4096  # of the embedding at once


@torch.no_grad()
def copying_scores(
    lens: Lens, *, n_tokens: int = 128, seed: int = 0, progress: Progress = silent
) -> pd.DataFrame:
    """Copying scores of every head.

    Args:
        lens: the model, on the bridge.
        n_tokens: tokens sampled for the rate.
        seed: of that sample.
        progress: told the number of layers.

    Returns:
        `layer`, `head`, `kv_head`, `copying`, `copying_shuffled`, `copying_embedding`,
        `copying_embedding_shuffled`, `copying_rate`, `copying_rate_low`, `copying_rate_high`
        (Wilson's 95 % interval over tokens), `copying_rate_uniform` (what chance gives).

    Raises:
        SwitchSDError: the live backend, weights this lab cannot read, or no tokens asked for.
    """
    if n_tokens < 1:
        raise SwitchSDError(f"n_tokens = {n_tokens}: sample at least 1 token")
    E, U = lens.model.get_input_embeddings().weight.detach(), unembedding(lens)
    tokens = _sample(lens, n_tokens, seed)
    rows: list[dict[str, float]] = []
    for layer in range(lens.n_layers):
        progress("copying scores", layer, lens.n_layers)
        read, write = head_values(lens, layer), head_output(lens, layer).weight
        elsewhere = _elsewhere(lens, layer, read)
        overlap = _overlap(lens, layer, E, U)
        seen = normed(lens, layer, E[tokens])
        group = lens.n_heads // lens.n_kv_heads
        for head in range(lens.n_heads):
            W_V, W_O, other = read[head], write[head], elsewhere[head]
            rate = _rate(seen @ W_V @ W_O, U, tokens)
            low, high = _wilson(rate, len(tokens))
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "kv_head": head // group,
                    "copying": copying(W_V, W_O),
                    "copying_shuffled": copying(other, W_O),
                    "copying_embedding": copying(W_V, W_O @ overlap),
                    "copying_embedding_shuffled": copying(other, W_O @ overlap),
                    "copying_rate": rate,
                    "copying_rate_low": low,
                    "copying_rate_high": high,
                    "copying_rate_uniform": min(1.0, TOP / lens.d_vocab),
                }
            )
    progress("copying scores", lens.n_layers, lens.n_layers)
    return pd.DataFrame(rows)


def _elsewhere(lens: Lens, layer: int, read: Float[Tensor, "head d e"]) -> Tensor:
    """The next key head's value weights; where a layer has but one, the next layer's."""
    if lens.n_kv_heads > 1:
        return read.roll(-(lens.n_heads // lens.n_kv_heads), dims=0)
    return head_values(lens, (layer + 1) % lens.n_layers)


def _overlap(
    lens: Lens, layer: int, E: Float[Tensor, "vocab d"], U: Float[Tensor, "vocab d"]
) -> Float[Tensor, "d d"]:
    """Uᵀ E, with E as the layer's attention reads it: what turns d_model eigenvalues into vocab's.

    E W_V W_O Uᵀ is vocab × vocab; its nonzero eigenvalues are those of W_O (Uᵀ E) W_V. U is centred
    over the vocabulary: what raises every token alike changes no probability.
    """
    U = U - U.mean(0)
    total = torch.zeros(E.shape[1], E.shape[1], dtype=torch.float64, device=E.device)
    for start in range(0, len(E), _ROWS):
        rows = slice(start, start + _ROWS)
        total += (U[rows].T @ normed(lens, layer, E[rows])).double()
    return total.to(E.dtype)


def _rate(written: Float[Tensor, "token d"], U: Float[Tensor, "vocab d"], tokens: Tensor) -> float:
    """Share of tokens with fewer than `TOP` others raised as much as themselves, or more."""
    logits = written @ U.T
    own = logits.gather(1, tokens[:, None])
    return float(((logits >= own).sum(1) <= TOP).double().mean())


def _sample(lens: Lens, n_tokens: int, seed: int) -> Tensor:
    special = special_ids(lens.tokenizer) if lens.tokenizer is not None else frozenset()
    size = lens.model.get_input_embeddings().weight.shape[0]
    ordinary = np.setdiff1d(np.arange(min(size, lens.d_vocab)), list(special))
    chosen = np.random.default_rng(seed).choice(
        ordinary, min(n_tokens, len(ordinary)), replace=False
    )
    return torch.from_numpy(np.sort(chosen)).to(lens.device)


def _wilson(rate: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share, which keeps its width at 0 and 1."""
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)
