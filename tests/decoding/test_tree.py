"""Draft trees: merging, positions, and the mask."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from switchsd.decoding.step.tree import ANCHOR, DraftTree


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    out = set()
    for node in range(len(tree)):
        path, at = [], node
        while at != ANCHOR:
            path.append(tree.tokens[at])
            at = tree.parents[at]
        out.add(tuple(reversed(path)))
    return out


def test_merge_keeps_every_candidate_once() -> None:
    rng = random.Random(0)
    for _ in range(200):
        candidates = [
            [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
            for _ in range(rng.randrange(1, 5))
        ]
        tree = DraftTree.merge(candidates)
        prefixes = {tuple(c[: k + 1]) for c in candidates for k in range(len(c))}
        assert paths(tree) == prefixes
        assert len(tree) == len(prefixes)


def test_mask_is_block_triangular_without_shared_prefixes() -> None:
    tree = DraftTree.merge([[1, 2], [3, 4]], sources=[10, 20])
    assert tree.attend.tolist() == [
        [True, False, False, False, False],
        [True, True, False, False, False],
        [True, True, True, False, False],
        [True, False, False, True, False],
        [True, False, False, True, True],
    ]
    assert tree.depths.tolist() == [0, 1, 2, 1, 2]
    assert tree.sources == (10, 11, 20, 21)


def test_mask_shows_ancestors_only() -> None:
    tree = DraftTree.merge([[1, 2, 3], [1, 2, 4], [1, 5]])
    for node, parent in enumerate(tree.parents):
        row = tree.attend[node + 1].copy()
        row[node + 1] = False
        assert np.array_equal(row, tree.attend[parent + 1])


def test_refuses_what_is_no_tree() -> None:
    with pytest.raises(ValueError, match="parent"):
        DraftTree((1, 2), (1, -1))
    with pytest.raises(ValueError, match="merge"):
        DraftTree((1, 1), (-1, -1))
    with pytest.raises(ValueError, match="one parent"):
        DraftTree((1,), ())
    with pytest.raises(ValueError, match="every node"):
        DraftTree.chain([1, 2], q=(torch.ones(4),))
    with pytest.raises(ValueError, match="merge"):  # deterministic ones, beside a drawn one
        DraftTree((1, 1, 1), (-1, -1, -1), q=(torch.ones(4), None, None))


def test_tokens_go_on_behind_a_chain() -> None:
    q = torch.full((2, 4), 0.25)
    tree = DraftTree.chain([1, 2], q=q).then([3, 0], source=7)
    assert (tree.tokens, tree.parents) == ((1, 2, 3, 0), (-1, 0, 1, 2))
    assert tree.sources == (-1, -1, 7, 8)
    assert [tree.distribution(node) is None for node in range(4)] == [False, False, True, True]
    assert DraftTree().then([5]) == DraftTree.chain([5])
    copied = DraftTree.merge([[1]], [4]).then([2])
    assert (copied.sources, copied.q) == ((4, -1), None)
