"""A start for EAGLE-3 heads that copies before it has learned anything: planted induction heads.

An induction head (Olsson et al. 2022) looks for the current token earlier in the text and gives
what came after it. The slot of an EAGLE-3 head at j holds the embedding of token j + 1 beside a
feature of position j. If the feature tells token j, which a low stream of the target does, one
attention head can do it all: query from the embedding, key from the feature, value the embedding
beside the key. Fusion, keys, queries, values and outputs of some heads are set so in closed form;
the others stay what they were. Training takes it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..eagle3.head import Eagle3Head
from .features import TextFeatures

SHARPNESS = 20.0
"""Attention logit of a matching token, before training."""
STRENGTH = 2.0
"""Size of what a copy writes, in root mean squares of the feature."""
SHARE = 0.5
"""Size of the token's part of the feature, in root mean squares of the last stream."""
_SLOWEST = 0.01
"""Radians a token by which the dimensions used may turn: positions hardly count."""
SAMPLED = 20_000
"""Positions that the closed form is fitted on."""


@dataclass(frozen=True)
class Sample:
    """What the target computed on some text: one row a position.

    Attributes:
        tokens: ids.
        low: the first fused stream, which still tells them.
        last: the last fused stream, the feature to start from.
    """

    tokens: Int[Tensor, " row"]
    low: Float[Tensor, "row d"]
    last: Float[Tensor, "row d"]


def draw_sample(
    data: TextFeatures, rows: Sequence[int], first: str, last: str, seed: int = 0
) -> Sample:
    """Some of these texts, about `SAMPLED` positions.

    Args:
        data: texts with their streams.
        rows: texts to draw from.
        first: site of the first fused stream.
        last: site of the last one.
        seed: of the draw.
    """
    parts: list[tuple[Tensor, ...]] = []
    for row in np.random.default_rng(seed).permutation(list(rows)).tolist():
        length = data.lengths[row]
        streams = (data.streams([row], site, torch.float32)[0, :length] for site in (first, last))
        parts.append((data.batch([row]).ids[0, :length], *streams))
        if sum(len(part[0]) for part in parts) >= SAMPLED:
            break
    return Sample(*(torch.cat(each) for each in zip(*parts, strict=True)))


@torch.no_grad()
def plant_induction(
    head: Eagle3Head,
    sample: Sample,
    embedding: Float[Tensor, "vocab d"],
    unembedding: Float[Tensor, "vocab d"],
) -> list[int]:
    """Make some key heads of a fresh EAGLE-3 head, with all their query heads, copy.

    Args:
        head: its feature starts as the last of three streams as wide as itself.
        sample: of the target's streams, a few thousand rows.
        embedding: the target's.
        unembedding: the target's.

    Returns:
        The key heads; none where the head has fewer than two, or too few dimensions whose rotary
        embedding hardly turns. Nothing is changed then.
    """
    attention, d = head.midlayer.self_attn, head.config.hidden_size
    chosen = list(range(1, min(3, head.config.num_key_value_heads)))
    slow = _slow_dimensions(attention.width, attention.theta)
    if not chosen or len(slow) < 8:
        return []
    tokens, low, last = sample.tokens, sample.low.float(), sample.last.float()
    normed = _normed(embedding.float())
    of_token, of_low = _shared_directions(normed[tokens], low, len(slow))
    # the token's part of the feature lies in a random subspace, the last stream in the rest
    place = torch.linalg.qr(torch.randn(d, len(slow), device=low.device))[0].T
    scale = SHARE * last.pow(2).mean().sqrt() * (d / len(slow)) ** 0.5
    head.fc.weight.zero_()
    head.fc.weight[:, :d] = scale * place.T @ of_low
    head.fc.weight[:, -d:] = torch.eye(d, device=low.device) - place.T @ place
    head.midlayer.input_layernorm.weight.fill_(1.0)
    feature = low @ head.fc.weight[:, :d].T + last @ head.fc.weight[:, -d:].T
    stretch = head.midlayer.hidden_norm.weight
    query, key = torch.zeros(2, head.config.head_dim, 2 * d, device=low.device)
    query[slow, :d] = of_token
    key[slow, d:] = place / torch.where(stretch.abs() < 1e-3, 1e-3, stretch)
    keys = (_normed(feature) * stretch) @ key[:, d:].T
    match = ((normed[tokens] @ query[:, :d].T) * keys).sum(-1).mean()
    query *= SHARPNESS * head.config.head_dim**0.5 / match
    drafted = head.target_ids
    told = min(attention.width, min(d, len(drafted)) // len(chosen))  # directions a key head copies
    directions, values = _copied(normed[drafted], unembedding[drafted].float(), len(chosen) * told)
    group = attention.heads // head.config.num_key_value_heads
    wrote = STRENGTH * feature.pow(2).mean().sqrt() / group
    for number, kv in enumerate(chosen):
        mine = slice(number * told, (number + 1) * told)
        rows = slice(kv * attention.width, (kv + 1) * attention.width)
        attention.k_proj.weight[rows] = key
        attention.v_proj.weight[rows] = 0.0
        attention.v_proj.weight[rows][:told, :d] = values[mine]
        for q in range(kv * group, (kv + 1) * group):
            rows = slice(q * attention.width, (q + 1) * attention.width)
            attention.q_proj.weight[rows] = query
            attention.o_proj.weight[:, rows] = 0.0
            attention.o_proj.weight[:, rows][:, :told] = wrote * directions[:, mine]
    return chosen


def _normed(x: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
    """Rows of root mean square 1."""
    return x / x.pow(2).mean(-1, keepdim=True).add(1e-12).sqrt()


def _slow_dimensions(width: int, theta: float) -> list[int]:
    """Dimensions of a head that its rotary embedding hardly turns."""
    half = width // 2
    slow = [i for i in range(half) if theta ** (-i / half) < _SLOWEST]
    return slow + [i + half for i in slow]


def _shared_directions(
    x: Float[Tensor, "row d"], y: Float[Tensor, "row d"], count: int
) -> tuple[Float[Tensor, "count d"], Float[Tensor, "count d"]]:
    """Canonical correlations: maps of x and of y that agree best, each of unit variance."""
    roots = []
    for z in (x, y):
        centred = z - z.mean(0)
        cov = centred.T @ centred / len(z)
        values, vectors = torch.linalg.eigh(cov)
        floor = 1e-3 * values.clamp(min=0).mean()
        roots.append(vectors @ torch.diag((values.clamp(min=0) + floor).rsqrt()) @ vectors.T)
    cross = (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)
    left, _, right = torch.linalg.svd(roots[0] @ cross @ roots[1])
    return left[:, :count].T @ roots[0], right[:count] @ roots[1]


def _copied(
    embedding: Float[Tensor, "vocab d"], unembedding: Float[Tensor, "vocab d"], count: int
) -> tuple[Float[Tensor, "d count"], Float[Tensor, "count d"]]:
    """Directions that tell most of the unembedding, and how to read them off a normed embedding.

    Where both are one matrix, the reading is the directions themselves.
    """
    _, _, directions = torch.linalg.svd(unembedding - unembedding.mean(0), full_matrices=False)
    directions = directions[:count].T
    gram = embedding.T @ embedding
    floor = 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    wanted = _normed(unembedding) @ directions
    return directions, torch.linalg.solve(gram + floor, embedding.T @ wanted).T
