"""The shape of an EAGLE-3 draft tree, and which of the drafted nodes are verified."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import SwitchSDError
from .tree import ANCHOR, DraftTree


@dataclass(frozen=True)
class TreeShape:
    """How a draft tree grows.

    Attributes:
        total: nodes kept, the anchor counted.
        depth: expansions after the first; the tree is at most depth + 1 deep.
        top_k: children of a node, and nodes that are expanded at each depth.

    Raises:
        SwitchSDError: total < 2, depth < 0 or top_k < 1.
    """

    total: int = 60
    depth: int = 5
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.total < 2 or self.depth < 0 or self.top_k < 1:
            raise SwitchSDError(
                f"{self}: total has to be at least 2, depth at least 0, top_k at least 1"
            )

    @property
    def name(self) -> str:
        """What traces, profiles and fits know it by: tree_20_4_4."""
        return f"tree_{self.total}_{self.depth}_{self.top_k}"

    @property
    def deepest(self) -> int:
        """Most tokens of it that can be accepted."""
        return self.depth + 1

    @classmethod
    def parse(cls, name: str | None) -> TreeShape | None:
        """The shape of that name; None if it is none."""
        try:
            word, total, depth, top_k = (name or "").split("_")
            shape = cls(int(total), int(depth), int(top_k))
        except ValueError:
            return None
        return shape if word == "tree" and shape.name == name else None


def keep_best(
    tokens: list[int], parents: list[int], scores: list[float], *, count: int
) -> DraftTree:
    """The `count` nodes with the highest scores, parents first.

    No child scores above its parent and parents come first, so with a stable order a kept node's
    parent is kept too.
    """
    order = sorted(range(len(tokens)), key=lambda node: -scores[node])[:count]
    place = {node: new for new, node in enumerate(sorted(order))}
    place[ANCHOR] = ANCHOR
    kept = sorted(order)
    return DraftTree(
        tuple(tokens[node] for node in kept), tuple(place[parents[node]] for node in kept)
    )
