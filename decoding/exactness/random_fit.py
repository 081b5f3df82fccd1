"""A fit of cost-aware with random depths: stands in where the question is whether text is exact."""

from __future__ import annotations

import numpy as np

from ...probing.copy_probe import CopyProbe
from ..drafters.drafter import Drafter
from ..gates.cost_aware import CostAwareFit


def random_fit(
    probe: CopyProbe, neural: Drafter | None, *, W: int = 1, n: int = 3, seed: int = 0
) -> CostAwareFit:
    """Depths of copies (0–20) and drafts (0–10, or a whole tree) at random.

    Args:
        probe: what it reads.
        neural: what drafts; None: nothing.
        W: copy candidates.
        n: tokens that have to match.
        seed: of the depths.
    """
    rng = np.random.default_rng(seed)
    scores, matches = (0.25, 0.5, 0.75), (1, 2, 4)
    size = (len(matches) + 1, len(scores) + 1)
    copy, drafts = rng.integers(0, 21, size), rng.integers(0, 11, size)
    copy[0] = 0  # nothing to copy there
    kind, digest = (None, None) if neural is None else (neural.kind, neural.digest)
    if neural is not None and neural.tree is not None:
        drafts = np.where(drafts > 2, neural.tree.deepest, 0)
    return CostAwareFit(
        probe.fingerprint,
        probe.digest,
        kind,
        digest,
        n,
        W,
        scores,
        matches,
        tuple(map(tuple, copy.tolist())),
        tuple(map(tuple, drafts.tolist())),
    )
