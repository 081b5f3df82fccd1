"""Copy-mode labels: which tokens of a sequence repeat an earlier span, and from where.

A token is copied when it lies in a verbatim span of at least `n_train` tokens that occurred
earlier in the same sequence (the paper's §3.2). The loops that small models fall into, which
inflate every figure built on these labels, are marked by `loop_start`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from ..errors import SwitchSDError

OFFSETS = (0, 1, 2)
"""Label offsets in use: the token itself, the anchor, the first token to be drafted."""

TokenIds = Sequence[int] | Int[np.ndarray, " pos"]


@dataclass(frozen=True)
class CopyLabels:
    """Which tokens are copied, and the position each was copied from (-1 where not copied)."""

    copied: Bool[np.ndarray, " pos"]
    source: Int[np.ndarray, " pos"]

    def __post_init__(self) -> None:
        if self.copied.shape != self.source.shape:
            raise ValueError(f"shapes differ: {self.copied.shape} and {self.source.shape}")


def copy_labels(ids: TokenIds, *, n_train: int = 5, breaks: Set[int] = frozenset()) -> CopyLabels:
    """Label every token of `ids` as copied or not, and say where each copied token came from.

    The earlier occurrence starts strictly earlier and may overlap the later one, as in a loop.
    No span contains a token of `breaks` (special ids), so those are never copied. The source
    follows one earlier occurrence for as long as it goes on to match; where it stops matching,
    the source is the most recent earlier occurrence of the first window of `n_train` tokens
    that covers the token. Time is linear in the length.

    Example: `copy_labels([1, 2, 3, 9, 1, 2, 3], n_train=3).source` is
    `[-1, -1, -1, -1, 0, 1, 2]`.

    Raises:
        SwitchSDError: `n_train` below 1, or `ids` not a flat sequence of integers.
    """
    if n_train < 1:
        raise SwitchSDError(f"n_train is {n_train}; a copied span needs at least 1 token")
    tokens = _flat(ids)
    earlier = _previous_windows(tokens, n_train, breaks)
    source = np.full(len(tokens), -1, dtype=np.int64)
    matched = np.flatnonzero(earlier >= 0)
    values, next_free = tokens.tolist(), 0
    for start, origin in zip(matched.tolist(), earlier[matched].tolist(), strict=True):
        for position in range(max(start, next_free), start + n_train):
            followed = int(source[position - 1]) + 1  # 0 where the token before is not copied
            goes_on = followed > 0 and values[followed] == values[position]
            source[position] = followed if goes_on else origin + position - start
        next_free = start + n_train
    return CopyLabels(copied=source >= 0, source=source)


def loop_start(ids: TokenIds, *, max_period: int = 64, min_repeats: int = 3) -> int:
    """Index where the loop that runs up to the end of `ids` starts; `len(ids)` without one.

    A loop is a period of at most `max_period` tokens that stands at least `min_repeats` times in
    full; a last, partial repeat may follow. Where several periods qualify, the earliest start
    counts.

    Raises:
        SwitchSDError: `max_period` below 1 or `min_repeats` below 2.
    """
    if max_period < 1:
        raise SwitchSDError(f"max_period is {max_period}; it must be at least 1")
    if min_repeats < 2:
        raise SwitchSDError(f"min_repeats is {min_repeats}; a loop repeats at least 2 times")
    tokens = _flat(ids)
    earliest = len(tokens)
    for period in range(1, min(max_period, len(tokens) // min_repeats) + 1):
        broken = np.flatnonzero(tokens[:-period] != tokens[period:])
        start = int(broken[-1]) + 1 if len(broken) else 0
        if len(tokens) - start >= period * min_repeats:
            earliest = min(earliest, start)
    return earliest


def _previous_windows(
    tokens: Int[np.ndarray, " pos"], n: int, breaks: Set[int]
) -> Int[np.ndarray, " window"]:
    """For each window of n tokens, the start of its most recent earlier occurrence, or -1."""
    n_windows = max(len(tokens) - n + 1, 0)
    earlier = np.full(n_windows, -1, dtype=np.int64)
    is_break = np.isin(tokens, np.fromiter(breaks, dtype=np.int64, count=len(breaks)))
    breaks_before = np.concatenate([[0], np.cumsum(is_break)])
    whole = breaks_before[n : n + n_windows] == breaks_before[:n_windows]
    latest: dict[bytes, int] = {}
    width = tokens.itemsize
    raw = tokens.tobytes()
    for start in np.flatnonzero(whole).tolist():
        window = raw[start * width : (start + n) * width]
        earlier[start] = latest.get(window, -1)
        latest[window] = start
    return earlier


def _flat(ids: TokenIds) -> Int[np.ndarray, " pos"]:
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise SwitchSDError(
            f"token ids must be a flat sequence of integers, not {tokens.dtype} {tokens.shape}"
        )
    return np.ascontiguousarray(tokens, dtype=np.int64)
