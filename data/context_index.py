"""Where the last n tokens occurred before, and what followed: incremental, constant work a step.

A continuation that runs into the end of the context goes on into itself, as in LZ77: after
`a b a b` the occurrence two back continues `a b a b a b …`. So every candidate has the full length
and a loop is copied as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import SwitchSDError

SPAN = 20
"""Candidates are told apart by this many tokens of continuation, before they are cut to D."""

MATCH_CAP = 32
"""A match is followed back this many tokens at most."""


@dataclass(frozen=True)
class Candidate:
    """A continuation copied from the context.

    Attributes:
        source: position the first token is copied from.
        tokens: the continuation.
    """

    source: int
    tokens: tuple[int, ...]


@dataclass
class _Occurrences:
    first: int
    open: deque[int] = field(default_factory=deque)  # fewer than SPAN tokens follow yet
    full: dict[tuple[int, ...], int] = field(default_factory=dict)  # continuation → latest end


class ContextIndex:
    """Index over a growing token sequence by its n-grams.

    An occurrence counts from when a token follows it, so the n-gram at the end never finds itself.

    Args:
        n: tokens that have to match.

    Raises:
        SwitchSDError: n < 1.
    """

    def __init__(self, n: int = 3) -> None:
        if n < 1:
            raise SwitchSDError(f"n = {n}: at least one token has to match")
        self.n = n
        self.ids: list[int] = []
        self._seen: dict[tuple[int, ...], _Occurrences] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, token: int) -> None:
        """Add the next token of the context."""
        ids, n = self.ids, self.n
        end = len(ids) - 1  # the n-gram that ends here now has a continuation
        if end >= n - 1:
            key = tuple(ids[end - n + 1 : end + 1])
            found = self._seen.get(key)
            if found is None:
                found = self._seen[key] = _Occurrences(end)
            found.open.append(end)
        ids.append(token)
        end = len(ids) - 1 - SPAN  # and the one that ends here has a full one
        if end >= n - 1:
            found = self._seen[tuple(ids[end - n + 1 : end + 1])]
            found.open.popleft()
            continuation = tuple(ids[end + 1 :])
            found.full.pop(continuation, None)  # re-inserted, so that the newest comes last
            found.full[continuation] = end

    def extend(self, tokens: Iterable[int]) -> None:
        """Add several tokens."""
        for token in tokens:
            self.append(token)

    def candidates(self, W: int, D: int) -> list[Candidate]:
        """The W most recent distinct continuations of the last n tokens, each of D tokens.

        Distinct by `SPAN` tokens, before they are cut to D. Most recent first.

        Raises:
            SwitchSDError: W or D outside 1…, D beyond `SPAN`.
        """
        if W < 1 or not 1 <= D <= SPAN:
            raise SwitchSDError(f"W = {W}, D = {D}: W has to be at least 1 and D in 1–{SPAN}")
        found = self._seen.get(self._tail())
        if found is None:
            return []
        chosen: dict[tuple[int, ...], int] = {}
        for end in reversed(found.open):
            chosen.setdefault(self._continuation(end, SPAN), end)
            if len(chosen) == W:
                break
        else:
            for continuation, end in reversed(found.full.items()):
                chosen.setdefault(continuation, end)
                if len(chosen) == W:
                    break
        return [Candidate(end + 1, tokens[:D]) for tokens, end in chosen.items()]

    def first(self, D: int) -> Candidate | None:
        """The continuation of the first occurrence of the last n tokens, as far as it goes."""
        found = self._seen.get(self._tail())
        if found is None:
            return None
        start = found.first + 1
        return Candidate(start, tuple(self.ids[start : start + D]))

    def match_length(self, source: int) -> int:
        """How many tokens before `source` equal the context's last ones (at most `MATCH_CAP`)."""
        ids, length = self.ids, 0
        limit = min(MATCH_CAP, source)
        while length < limit and ids[source - 1 - length] == ids[-1 - length]:
            length += 1
        return length

    def _tail(self) -> tuple[int, ...]:
        return tuple(self.ids[-self.n :])

    def _continuation(self, end: int, length: int) -> tuple[int, ...]:
        block = self.ids[end + 1 : end + 1 + length]
        return tuple((block * (length // len(block) + 1))[:length])


def offered(
    ids: Sequence[int], start: int, *, n: int = 3, W: int = 1, D: int = SPAN
) -> Iterator[tuple[int, list[Candidate]]]:
    """What could be copied at each place of a known text, from `start` on.

    Args:
        ids: the whole text.
        start: first place asked about.
        n: tokens that have to match.
        W: number of candidates.
        D: length of each.

    Yields:
        Match length of the newest candidate (0 without one) and the candidates, newest first; both
        known from the ids before the place alone.
    """
    index = ContextIndex(n)
    index.extend(ids[:start])
    for token in ids[start:]:
        found = index.candidates(W, D)
        yield index.match_length(found[0].source) if found else 0, found
        index.append(token)


def copy_yield(
    ids: Sequence[int], start: int, *, n: int = 3, W: int = 1, D: int = SPAN
) -> dict[str, np.ndarray]:
    """What the copy path would have had accepted at every position of a known greedy text.

    At anchor position t the candidates come from `ids[: t + 1]`; accepted counts how many tokens of
    the best one equal `ids[t + 1 :]`. Counts stop at the end of `ids`.

    Args:
        ids: the whole sequence.
        start: first anchor position (usually the prompt's last).
        n: tokens that have to match.
        W: number of candidates.
        D: length of each.

    Returns:
        `position` (of the first token to be drafted), `accepted`, `match_length` (0: no candidate),
        each with one entry an anchor in `start … len(ids) - 2`.
    """
    rows = []
    for place, (match, found) in enumerate(offered(ids, start + 1, n=n, W=W, D=D), start + 1):
        truth = ids[place : place + D]
        rows.append((place, max((common_prefix(c.tokens, truth) for c in found), default=0), match))
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return {"position": table[:, 0], "accepted": table[:, 1], "match_length": table[:, 2]}


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
