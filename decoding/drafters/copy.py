"""Copy drafters: candidates out of the context, each policy by its own match rule."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ...data.context_index import SPAN, Candidate, ContextIndex
from ...errors import SwitchSDError
from ..step.tree import DraftTree

_ANY = 2**31


@dataclass(frozen=True)
class Lookup:
    """What the context offers now.

    Attributes:
        candidates: in order of preference.
        match_length: how far back the first one's match goes.
    """

    candidates: tuple[Candidate, ...] = ()
    match_length: int = 0

    def tree(self, limit: int, stops: frozenset[int]) -> DraftTree:
        """The candidates merged, at most `limit` deep, none going on behind a stop token."""
        cut = [_until(candidate.tokens[:limit], stops) for candidate in self.candidates]
        return DraftTree.merge(cut, [candidate.source for candidate in self.candidates])


class Copier:
    """Finds candidates in the committed tokens. Only `look` has to be written.

    Attributes:
        W: candidates it offers at most.
        D: tokens of each at most.
    """

    W: int = _ANY
    D: int = _ANY

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """Names its match rule: copiers of one rule differ in W and D alone."""
        return "own", id(self)

    def widened(self, W: int, D: int) -> Copier:
        """One of the same rule that offers as much; itself where W and D do not cut what it finds.

        Its first W candidates' first D tokens are what one of W and D offers.
        """
        return self

    def reset(self) -> None:
        """Forget the last prompt."""

    def look(self, committed: list[int]) -> Lookup:
        """What can be copied after these tokens; they only ever grow between resets."""
        raise NotImplementedError


class RecentCopier(Copier):
    """The W most recent distinct continuations of the last n tokens, D long (SwitchSD).

    Raises:
        SwitchSDError: W, D or n out of range.
    """

    def __init__(self, W: int = 1, D: int = 10, n: int = 3) -> None:
        self.W, self.D, self.n = W, D, n
        self.index = ContextIndex(n)
        self.index.candidates(W, D)  # refuses bad values now, not in the middle of a text

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """The most recent ones, n."""
        return "recent", self.n

    def widened(self, W: int, D: int) -> RecentCopier:
        """As many candidates, as long as they are told apart by."""
        return RecentCopier(W, min(D, SPAN), self.n)

    def reset(self) -> None:
        """Start an empty context."""
        self.index = ContextIndex(self.n)

    def look(self, committed: list[int]) -> Lookup:
        """Candidates by recency."""
        self.index.extend(committed[len(self.index) :])
        found = self.index.candidates(self.W, self.D)
        return Lookup(tuple(found), self.index.match_length(found[0].source) if found else 0)


class FirstCopier(Copier):
    """The first occurrence of the longest n-gram of the given sizes, D tokens from there.

    `sizes=(3,)` with D = 10 is CopySpec's rule (Dumitru et al. 2025); `sizes=(2, 1)` is PLD as
    transformers runs it (largest n-gram first, leftmost match).

    Raises:
        SwitchSDError: D or a size below 1.
    """

    def __init__(self, sizes: tuple[int, ...], D: int = 10) -> None:
        if D < 1:
            raise SwitchSDError(f"D = {D}: copy at least one token")
        self.sizes, self.W, self.D = sizes, 1, D
        self.reset()

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """The first one, by these sizes."""
        return "first", self.sizes

    def widened(self, W: int, D: int) -> FirstCopier:
        """As long a copy; there is one candidate."""
        return FirstCopier(self.sizes, D)

    def reset(self) -> None:
        """Start an empty context."""
        self.indices = [ContextIndex(n) for n in self.sizes]

    def look(self, committed: list[int]) -> Lookup:
        """The leftmost match of the largest n-gram that has one."""
        found: Lookup | None = None
        for index in self.indices:
            index.extend(committed[len(index) :])
            candidate = index.first(self.D) if found is None else None
            if candidate is not None:
                found = Lookup((candidate,), index.match_length(candidate.source))
        return found or Lookup()


def _until(tokens: tuple[int, ...], stops: frozenset[int]) -> tuple[int, ...]:
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[: place + 1]
    return tokens
