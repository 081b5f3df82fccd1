"""Accepted lengths of EAGLE-3 trees at many positions of a known text at once.

Trees grow as the drafter grows them, level by level over the likeliest frontier, here in a batch
over positions. Of each only one thing is asked: how far the text goes down among its kept nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ...decoding.eagle3.head import Eagle3Head
from ...decoding.step.tree_shape import TreeShape

_NUMBERS = 2**24
"""Attention weights or logits held at once, by which the batch is cut."""

_NO_NODE = -1


@torch.no_grad()
def tree_accepted(
    head: Eagle3Head,
    embed: nn.Module,
    ids: Int[Tensor, " token"],
    streams: Float[Tensor, "slot three_target_d"],
    slots: Int[Tensor, " some"],
    room: Int[np.ndarray, some],
    shapes: Sequence[TreeShape],
) -> dict[TreeShape, Int[np.ndarray, some]]:
    """How many tokens of the text each tree would have had accepted after each slot.

    Trees with one top_k grow alike, so they are grown once, as deep as the deepest.

    Args:
        head: the head.
        embed: the embedding it reads.
        ids: the text.
        streams: the target's three fused streams at every position but the last.
        slots: the newest true feature before each draft; the first token drafted is at slot + 2.
        room: how deep a draft may be there, at least 1.
        shapes: of the trees.
    """
    grove = _Grove(head, embed, ids, streams)
    depths = torch.from_numpy(room).to(ids.device)
    found: dict[TreeShape, Int[np.ndarray, some]] = {}
    for top_k in dict.fromkeys(shape.top_k for shape in shapes):
        alike = [shape for shape in shapes if shape.top_k == top_k]
        width = min(top_k, head.config.draft_vocab_size)
        for shape in alike:
            found[shape] = np.zeros(len(slots), dtype=int)
        # a tree without the first token has nothing accepted, however it goes on
        begun = grove.first_is_drafted(slots, width).nonzero()[:, 0]
        batch = max(1, _NUMBERS // (width * grove.numbers_a_node))
        for some in begun.split(batch) if len(begun) else ():
            lengths = grove.accepted(slots[some], depths[some], width, alike)
            for shape, values in zip(alike, lengths, strict=True):
                found[shape][some.cpu().numpy()] = values.cpu().numpy()
    return found


class _Grove:
    """The head over a text's true features, and trees grown from there."""

    def __init__(self, head: Eagle3Head, embed: nn.Module, ids: Tensor, streams: Tensor) -> None:
        self.head, self.embed, self.ids = head, embed, ids
        self.dtype = streams.dtype

        def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.keys, self.values = key[0], value[0]
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

        positions = torch.arange(len(streams), device=ids.device)[None]
        embedding = embed(ids[1:])[None].to(self.dtype)
        self.states = head.midlayer(embedding, head.fuse(streams)[None], positions, mix)[0]

    @property
    def numbers_a_node(self) -> int:
        """Attention weights, or logits, of one node."""
        config = self.head.config
        return max(config.num_attention_heads * len(self.states), config.draft_vocab_size)

    def first_is_drafted(self, slots: Tensor, width: int) -> Bool[Tensor, " some"]:
        """Whether the token at slot + 2 is among the first level's."""
        likely = self.head.predict(self.states[slots]).float().log_softmax(-1).topk(width, dim=-1)
        drafted = self.head.target_ids[likely.indices]
        return (drafted == self._truth(slots, 1)).any(-1)

    def accepted(
        self, slots: Tensor, room: Tensor, width: int, shapes: Sequence[TreeShape]
    ) -> list[Int[Tensor, " some"]]:
        """Accepted length after each slot, for trees of one top_k."""
        levels = min(max(shape.depth for shape in shapes) + 1, int(room.max()))
        truth = self._truth(slots, levels)
        nodes: list[Tensor] = []  # of the text, at each level
        scores: list[Tensor] = []
        branches = _Branches(self, slots)
        place = torch.zeros_like(slots)  # of the text's last node among those expanded
        count = 0
        for level in range(levels):
            likely = self.head.predict(branches.state).float().log_softmax(-1).topk(width, dim=-1)
            below = self.head.target_ids[likely.indices].flatten(1)
            reached = (branches.reached[..., None] + likely.values).flatten(1)
            parent = torch.arange(below.shape[1], device=slots.device) // width
            hit = (below == truth[:, level, None]) & (parent == place[:, None])
            node = torch.where(hit.any(1), hit.int().argmax(1), _NO_NODE)
            nodes.append(torch.where(node >= 0, node + count, _NO_NODE))
            scores.append(reached)
            count += below.shape[1]
            if level == levels - 1:
                break
            best = reached.sort(dim=1, descending=True, stable=True).indices[:, :width]
            expanded = (best == node[:, None]) & (node >= 0)[:, None]
            place = torch.where(expanded.any(1), expanded.int().argmax(1), _NO_NODE)
            branches.grow(best, best // width, below.gather(1, best), reached.gather(1, best))
        level_of = torch.cat(
            [torch.full_like(part[0], n, dtype=torch.long) for n, part in enumerate(scores)]
        )
        everything, path = torch.cat(scores, dim=1), torch.stack(nodes, dim=1)
        return [_kept_length(everything, level_of, path, room, shape) for shape in shapes]

    def _truth(self, slots: Tensor, levels: int) -> Int[Tensor, "some level"]:
        """The text's tokens at each level; none behind its end."""
        at = slots[:, None] + 2 + torch.arange(levels, device=slots.device)
        tokens = self.ids[at.clamp(max=len(self.ids) - 1)]
        return torch.where(at < len(self.ids), tokens, _NO_NODE)


class _Branches:
    """The nodes that are expanded at one level, and the drafted keys that each sees."""

    def __init__(self, grove: _Grove, slots: Tensor) -> None:
        self.grove, self.slots, self.level = grove, slots, 0
        self.state: Float[Tensor, "some node d"] = grove.states[slots][:, None]
        self.reached: Float[Tensor, "some node"] = self.state.new_zeros(
            (len(slots), 1), dtype=torch.float32
        )
        end = int(slots.max()) + 1
        self.true_keys, self.true_values = grove.keys[:, :end], grove.values[:, :end]
        later = torch.arange(end, device=slots.device) > slots[:, None]
        self.unseen: Bool[Tensor, "some 1 1 1 slot"] = later[:, None, None, None]
        self.seen = torch.zeros(len(slots), 1, 0, dtype=torch.bool, device=slots.device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def grow(self, best: Tensor, parents: Tensor, tokens: Tensor, reached: Tensor) -> None:
        """Put the next level's nodes through the head: [some, node] each."""
        self.level += 1
        self.reached = reached
        own = torch.eye(best.shape[1], dtype=torch.bool, device=best.device)
        before = self.seen.gather(1, parents[..., None].expand(-1, -1, self.seen.shape[-1]))
        self.seen = torch.cat([before, own.expand(len(best), -1, -1)], dim=-1)
        state = self.state.gather(1, parents[..., None].expand(-1, -1, self.state.shape[-1]))
        positions = (self.slots + self.level)[:, None].expand(-1, best.shape[1])
        embedding = self.grove.embed(tokens).to(self.grove.dtype)
        self.state = self.grove.head.midlayer(embedding, state, positions, self._mix)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        n_kv, n_slots, width = self.true_keys.shape
        query = query.unflatten(1, (n_kv, -1)) * width**-0.5
        true = torch.einsum("bkgnw,ksw->bkgns", query, self.true_keys)
        own = torch.einsum("bkgnw,bkmw->bkgnm", query, torch.cat(self.keys, dim=2))
        own = own.masked_fill(~self.seen[:, None, None], -torch.inf)
        weight = torch.cat([true.masked_fill(self.unseen, -torch.inf), own], dim=-1)
        weight = weight.softmax(-1).to(value.dtype)
        mixed = torch.einsum("bkgns,ksw->bkgnw", weight[..., :n_slots], self.true_values)
        drafted = torch.cat(self.values, dim=2)
        mixed = mixed + torch.einsum("bkgnm,bkmw->bkgnw", weight[..., n_slots:], drafted)
        return mixed.flatten(1, 2)


def _kept_length(
    scores: Float[Tensor, "some node"],
    level_of: Int[Tensor, " node"],
    path: Int[Tensor, "some level"],
    room: Int[Tensor, " some"],
    shape: TreeShape,
) -> Int[Tensor, " some"]:
    """How many nodes of the text a tree keeps: no child scores above its parent."""
    levels = room.clamp(max=shape.depth + 1)[:, None]
    there = scores.masked_fill(level_of >= levels, -torch.inf)
    ranked = there.sort(dim=1, descending=True, stable=True).indices[:, : shape.total - 1]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ranked, value=True)
    within = torch.arange(path.shape[1], device=path.device) < levels
    return (kept.gather(1, path.clamp(min=0)) & (path >= 0) & within).sum(1)
