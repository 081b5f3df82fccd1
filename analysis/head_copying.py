"""Whether a head's OV circuit copies, from weights alone: eigenvalues, and token by token.

`copying`            Re Σλ / Σ|λ| over the eigenvalues of W_V W_O (Elhage et al. 2021)
`copying_embedding`  the same of E W_V W_O U, from the normed embedding of every token to its
                     logits, less what raises all of them alike
`copying_rate`       share of sampled tokens that the head, attending to them alone, raises above
                     all but `TOP` others
The `_shuffled` columns pair each head's W_O with another key head's W_V. E is the embedding itself:
what lower layers make of a token is left out, so a head that reads their output can copy and score
nothing here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.chat import special_ids
from ..errors import SwitchSDError
from ..probing.lens import Lens
from ..progress import Progress, silent
from .head_weights import copying, head_output, head_values, normed, unembedding

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
