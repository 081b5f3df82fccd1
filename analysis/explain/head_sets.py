"""Which heads a causal test takes: the first k of a ranking, or random ones of the same layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...runs import require

Head = tuple[int, int]
"""(layer, head)."""


def top_heads(table: pd.DataFrame, by: str, k: int) -> list[Head]:
    """The k heads with the greatest value, the best first; lower layer and head first among equals.

    Args:
        table: layer, head and `by`, one row a head.
        by: column to rank by.
        k: how many.

    Raises:
        SwitchSDError: k below 1 or above the number of heads, or a column that is not there.
    """
    require(table, "heads", "layer", "head", by)
    if not 1 <= k <= len(table):
        raise SwitchSDError(f"k = {k}: the model has {len(table)} heads, choose 1–{len(table)}")
    ranked = table.sort_values([by, "layer", "head"], ascending=[False, True, True])
    chosen = ranked.head(k)
    return [(int(a), int(b)) for a, b in zip(chosen["layer"], chosen["head"], strict=True)]


def check_heads(heads: Sequence[Head], n_layers: int, n_heads: int) -> None:
    """Raise `SwitchSDError` unless the model has all these heads, each named once."""
    for layer, head in heads:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise SwitchSDError(
                f"there is no head {layer}.{head}: layers are 0–{n_layers - 1}, heads "
                f"0–{n_heads - 1}"
            )
    if len(set(heads)) < len(heads):
        raise SwitchSDError("a head is named twice; name each once")


def matched_random_heads(
    heads: Sequence[Head], n_layers: int, n_heads: int, *, draws: int, seed: int
) -> list[list[Head]]:
    """Random sets as large as `heads`, none of them in it, layer for layer.

    Where a layer has no head left, the nearest layer that has one gives it (the lower of two).

    Args:
        heads: the set to match.
        n_layers, n_heads: of the model.
        draws: sets wanted.
        seed: of the draws.

    Raises:
        SwitchSDError: heads that are not there, or too few others to draw from.
    """
    check_heads(heads, n_layers, n_heads)
    if 2 * len(heads) > n_layers * n_heads:
        raise SwitchSDError(
            f"{len(heads)} heads of {n_layers * n_heads} leave too few to draw others from; "
            "choose fewer"
        )
    random = np.random.default_rng(seed)
    return [_one_draw(heads, n_layers, n_heads, random) for _ in range(draws)]


def _one_draw(
    heads: Sequence[Head], n_layers: int, n_heads: int, random: np.random.Generator
) -> list[Head]:
    free = {
        layer: [h for h in range(n_heads) if (layer, h) not in heads] for layer in range(n_layers)
    }
    drawn = []
    for layer, _ in heads:
        near = min((at for at in free if free[at]), key=lambda at: (abs(at - layer), at))
        drawn.append((near, free[near].pop(int(random.integers(len(free[near]))))))
    return drawn
