"""Training-time test: an EAGLE-3 head run as it will be when it drafts, at many positions at once.

Slot i holds the feature of position i and token i + 1. Step 0 sees true features only. Step k
stands where the head stands after k guesses: its input is its own output of step k − 1 beside token
i + 1 + k, at position i + k; it sees the true features up to slot i and its own guesses of the
steps before, at the same slot, and nothing else (Li et al. 2025, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from .head import Eagle3Head


def unroll(
    head: Eagle3Head,
    embedding: Float[Tensor, "text slot d"],
    streams: Float[Tensor, "text slot three_target_d"],
    steps: int,
    kept: Int[Tensor, "text some"],
) -> Iterator[Float[Tensor, "text slot_or_some d"]]:
    """What the head gives at each step: for all slots at step 0, for the kept ones later.

    Args:
        head: the head.
        embedding: of token i + 1 in slot i.
        streams: the target's three fused streams at position i.
        steps: how many, step 0 included.
        kept: slots that go on past step 0. Those whose later tokens lie behind the end of the text
            see its last token again; the caller leaves them out of the loss.
    """
    n_slots = streams.shape[1]
    positions = torch.arange(n_slots, device=streams.device).expand(len(streams), -1)
    mix = _Mix(kept, n_slots)
    state = head.midlayer(embedding, head.fuse(streams), positions, mix.true_features)
    yield state
    state = _take(state, kept)
    for step in range(1, steps):
        token = _take(embedding, (kept + step).clamp(max=n_slots - 1))
        state = head.midlayer(token, state, kept + step, mix.guesses)
        yield state


class _Mix:
    """Attention of one unrolled pass: it keeps the keys and values that later steps see."""

    def __init__(self, kept: Int[Tensor, "text some"], n_slots: int) -> None:
        slots = torch.arange(n_slots, device=kept.device)
        self.unseen: Bool[Tensor, "text 1 1 some slot"] = (slots > kept[:, :, None])[:, None, None]
        self.guessed: list[tuple[Tensor, Tensor]] = []

    def true_features(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.key, self.value = key, value
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )

    def guesses(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.guessed.append((key, value))
        _, n_kv, n_slots, width = self.key.shape
        query = query.unflatten(1, (n_kv, -1)) * width**-0.5  # [text, kv head, group, some, width]
        shape = (*query.shape[:4], n_slots)
        true = (query.flatten(2, 3) @ self.key.transpose(-1, -2)).view(shape)
        true = true.masked_fill(self.unseen, -torch.inf)
        own = [(query * k[:, :, None]).sum(-1, keepdim=True) for k, _ in self.guessed]
        weight = torch.cat([true, *own], dim=-1).softmax(-1).to(self.value.dtype)
        mixed = weight[..., :n_slots].flatten(2, 3) @ self.value
        mixed = mixed.view(*query.shape)
        for number, (_, v) in enumerate(self.guessed):
            mixed = mixed + weight[..., n_slots + number, None] * v[:, :, None]
        return mixed.flatten(1, 2)


def _take(x: Float[Tensor, "text slot d"], slots: Int[Tensor, "text some"]) -> Tensor:
    return x.gather(1, slots[:, :, None].expand(-1, -1, x.shape[-1]))
