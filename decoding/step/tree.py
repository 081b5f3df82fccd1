"""The draft tree: tokens, parents, positions, and the mask under which one pass verifies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    from torch import Tensor

ANCHOR = -1
"""Parent of the nodes that follow the anchor directly."""


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens in an order in which parents come first.

    Attributes:
        tokens: token of each node.
        parents: index of each node's parent, `ANCHOR` for the first ones.
        sources: context position each token was copied from (copy drafts only).
        q: of each node the distribution it was drawn from, [d_vocab], or None where it is
            deterministic (one-hot); None for a tree that is all so.

    Raises:
        ValueError: a parent does not come before its child, two one-hot siblings share a token, or
            q is not of every node.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[int, ...] | None = None
    q: Float[Tensor, "node d_vocab"] | Sequence[Float[Tensor, d_vocab] | None] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError("one parent a token")
        if any(not ANCHOR <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("a parent comes before its children")
        if self.q is not None and len(self.q) != len(self):
            raise ValueError("q says of every node what it was drawn from, or None")
        sure = [node for node in range(len(self)) if self.distribution(node) is None]
        if len({(self.parents[node], self.tokens[node]) for node in sure}) < len(sure):
            raise ValueError("two deterministic siblings with one token: merge them")

    def __len__(self) -> int:
        return len(self.tokens)

    def distribution(self, node: int) -> Float[Tensor, d_vocab] | None:
        """What a node was drawn from; None: it is deterministic."""
        return None if self.q is None else self.q[node]

    @cached_property
    def children(self) -> list[list[int]]:
        """Nodes below each node, in order; entry 0 is the anchor's, entry i + 1 node i's."""
        below: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            below[parent + 1].append(node)
        return below

    @cached_property
    def depths(self) -> Int[np.ndarray, slot]:
        """Distance from the anchor; entry 0 is the anchor's own, entry i + 1 node i's."""
        depths = np.zeros(len(self) + 1, dtype=np.int64)
        for node, parent in enumerate(self.parents):
            depths[node + 1] = depths[parent + 1] + 1
        return depths

    @cached_property
    def attend(self) -> Bool[np.ndarray, "slot slot"]:
        """Which slots (anchor first) each slot sees: its ancestors and itself only."""
        seen = np.eye(len(self) + 1, dtype=bool)
        for node, parent in enumerate(self.parents):
            seen[node + 1] |= seen[parent + 1]
        return seen

    @classmethod
    def chain(
        cls, tokens: Sequence[int], q: Float[Tensor, "node d_vocab"] | None = None
    ) -> DraftTree:
        """Tokens one after the other."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), q=q)

    def then(self, tokens: Sequence[int], source: int | None = None) -> DraftTree:
        """The same, and behind its last node these tokens one after the other, deterministic.

        Args:
            tokens: as they may follow what the last node ends.
            source: context position the first is copied from; None: they are no copy.

        Example:
            >>> DraftTree.chain([4, 7]).then([8, 9], source=30).sources
            (-1, -1, 30, 31)
        """
        count, size = len(tokens), len(self)
        sources = self.sources
        if source is not None:
            sources = (*(sources or [-1] * size), *range(source, source + count))
        elif sources is not None:
            sources = (*sources, *[-1] * count)
        return DraftTree(
            (*self.tokens, *tokens),
            (*self.parents, *range(size - 1, size - 1 + count)),
            sources,
            None if self.q is None else (*self.q, *[None] * count),
        )

    @classmethod
    def merge(
        cls, candidates: Sequence[Sequence[int]], sources: Sequence[int] | None = None
    ) -> DraftTree:
        """Candidates in order of preference, merged where they share a prefix.

        `sources` gives the context position each candidate starts at; a merged node keeps the first
        candidate's.
        """
        at: dict[tuple[int, int], int] = {}
        tokens: list[int] = []
        parents: list[int] = []
        copied: list[int] = []
        for number, candidate in enumerate(candidates):
            parent = ANCHOR
            for depth, token in enumerate(candidate):
                node = at.setdefault((parent, token), len(tokens))
                if node == len(tokens):
                    tokens.append(token)
                    parents.append(parent)
                    copied.append(sources[number] + depth if sources is not None else -1)
                parent = node
        return cls(tuple(tokens), tuple(parents), tuple(copied) if sources is not None else None)
