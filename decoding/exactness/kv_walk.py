"""Does the KV cache hold what a fresh forward would? Random trees, accepted paths and rollbacks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...probing.lens import Lens
from ...progress import Progress, silent
from ..step.tree import DraftTree


def kv_walk_errors(
    lens: Lens, walks: int, *, seed: int = 0, steps: int = 6, progress: Progress = silent
) -> Iterator[float]:
    """Random trees, accepted paths and rollbacks: largest logit error of each walk.

    Errors are relative to the largest logit of a fresh, uncached forward over the same tokens.
    """
    rng = random.Random(seed)
    vocabulary = min(lens.d_vocab, 1000)
    for walk in range(walks):
        progress(f"KV {lens.name}", walk, walks)
        kv = lens.new_kv()
        committed = [rng.randrange(vocabulary) for _ in range(rng.randrange(2, 24))]
        lens.forward(torch.tensor([committed[:-1]]), kv=kv)
        worst = 0.0
        for _ in range(rng.randrange(2, steps + 1)):
            base = len(committed) - 1
            tree = DraftTree.merge(
                [
                    [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
                    for _ in range(rng.randrange(1, 5))
                ]
            )
            logits = _tree_logits(lens, kv, committed, tree)
            node, path = rng.randrange(-1, len(tree)), list[int]()
            while node >= 0:
                path.insert(0, node)
                node = tree.parents[node]
            committed += [tree.tokens[i] for i in path]
            slots = [0, *(i + 1 for i in path)]
            worst = max(worst, _error(lens, committed, logits[slots[-1]]))
            kv.commit(base, slots)
            if rng.random() < 0.3 and kv.length > 2:  # forget some of it again
                keep = rng.randrange(1, kv.length)
                kv.rollback(keep)
                committed = committed[:keep]
            committed.append(rng.randrange(vocabulary))
        yield worst
    progress(f"KV {lens.name}", walks, walks)


def _tree_logits(lens: Lens, kv: Any, committed: list[int], tree: DraftTree) -> Tensor:
    base, slots = len(committed) - 1, len(tree) + 1
    attend = torch.ones(1, slots, base + slots, dtype=torch.bool)
    attend[0, :, base:] = torch.from_numpy(tree.attend)
    out = lens.forward(
        torch.tensor([[committed[-1], *tree.tokens]]),
        attend=attend,
        positions=torch.from_numpy(base + tree.depths)[None],
        kv=kv,
    )
    assert out.logits is not None
    return out.logits[0]


def _error(lens: Lens, ids: list[int], logits: Tensor) -> float:
    fresh = lens.forward(torch.tensor([ids]), logits="last").logits
    assert fresh is not None
    return float((logits - fresh[0, -1]).abs().max() / fresh.abs().max())
