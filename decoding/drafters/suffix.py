"""Copy by the longest match: an online suffix automaton over the committed tokens.

The automaton holds every substring of the context in at most two states a token (Blumer et al.
1985), so the longest suffix that occurred before is known as soon as a token is in. Which of its
occurrences is the most recent would cost a walk over all shorter suffixes at every token, which a
text that loops makes as long as itself; counting matches up to a cap bounds that walk by the cap.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ...data.context_index import Candidate
from ...errors import SwitchSDError
from .copy import Copier, Lookup

CAP = 64
"""Matches are told apart up to this many tokens; longer ones count as this long."""


@dataclass(frozen=True)
class Match:
    """An earlier occurrence of the context's end.

    Attributes:
        length: tokens that agree (0: the last token is new).
        end: position of the occurrence's last token (-1: none).
    """

    length: int = 0
    end: int = -1


class SuffixAutomaton:
    """Suffix automaton of a growing sequence, with each state's most recent occurrence.

    A state is a set of substrings that end at the same positions: one a length, from its link's
    length + 1 to its own. Appending costs amortised O(1) and at most `cap` updates.

    Args:
        cap: longest match that is told apart.

    Raises:
        SwitchSDError: cap < 1.
    """

    def __init__(self, cap: int = CAP) -> None:
        if cap < 1:
            raise SwitchSDError(f"cap = {cap}: a match is at least one token long")
        self.cap = cap
        self.ids: list[int] = []
        self.match = Match()
        """Longest suffix (up to `cap`) that occurred before, at its most recent earlier end."""
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._recent = [-1]  # end of the latest occurrence, kept where the shortest is within cap
        self._last = 0  # state of the whole sequence
        self._tail, self._tail_length = 0, 0  # state and length of its last `cap` tokens

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, token: int) -> None:
        """Add the next token; `match` is then that of the longer sequence."""
        self.ids.append(token)
        self._grow(token)
        self._move_tail(token)
        self._find_match()
        state, now = self._tail, len(self.ids) - 1
        while state > 0:  # everything that ends here ended here most recently
            self._recent[state] = now
            state = self._link[state]

    def _grow(self, token: int) -> None:
        new = self._state({}, -1, len(self.ids), -1)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._last = new
        if state < 0:
            self._link[new] = 0
            return
        old = self._next[state][token]
        if self._length[old] != self._length[state] + 1:
            old = self._split(old, self._length[state] + 1, state, token)
        self._link[new] = old

    def _split(self, old: int, length: int, state: int, token: int) -> int:
        """Move the substrings of `old` up to `length` into a state of their own."""
        short = self._state(dict(self._next[old]), self._link[old], length, self._recent[old])
        self._link[old] = short
        while state >= 0 and self._next[state].get(token) == old:
            self._next[state][token] = short
            state = self._link[state]
        return short

    def _state(self, following: dict[int, int], link: int, length: int, recent: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._recent.append(recent)
        return len(self._next) - 1

    def _move_tail(self, token: int) -> None:
        state, length = self._next[self._tail][token], self._tail_length + 1
        if length > self.cap:
            # a split may have left the tail in the state of longer substrings: links lead back
            length = self.cap
            while self._length[self._link[state]] >= length:
                state = self._link[state]
        self._tail, self._tail_length = state, length

    def _find_match(self) -> None:
        state, length = self._tail, self._tail_length
        if self._recent[state] < 0:  # the last `cap` tokens are new as a whole: their link is not
            state = self._link[state]
            length = self._length[state]
        self.match = Match(length, self._recent[state]) if state > 0 else Match()


class SuffixCopier(Copier):
    """Copies on from the most recent occurrence of the longest suffix that occurred before.

    A continuation that reaches the end of the context goes on into itself, as everywhere here (see
    `data.context_index`).

    Args:
        D: tokens to copy.
        shortest: a shorter match is no candidate.
        factor: copy at most this many tokens for each token of the match (SuffixDecoding, Oliaro et
            al. 2025, ties the draft to the match this way): a match of one token is worth a short
            try only. None copies D always.
        cap: matches are told apart up to this length.

    Raises:
        SwitchSDError: D or shortest below 1, factor not positive, cap below shortest.
    """

    def __init__(
        self, D: int = 10, *, shortest: int = 1, factor: float | None = 4.0, cap: int = CAP
    ) -> None:
        if D < 1:
            raise SwitchSDError(f"D = {D}: copy at least one token")
        if not 1 <= shortest <= cap:
            raise SwitchSDError(f"shortest = {shortest}: the shortest match lies in 1–{cap}")
        if factor is not None and factor <= 0:
            raise SwitchSDError(f"factor = {factor}: has to be positive (None: no limit)")
        self.W, self.D, self.shortest, self.factor, self.cap = 1, D, shortest, factor, cap
        self.reset()

    @property
    def rule(self) -> tuple[Hashable, ...]:
        """The longest suffix, by these settings."""
        return "suffix", self.shortest, self.factor, self.cap

    def widened(self, W: int, D: int) -> SuffixCopier:
        """As long a copy; there is one candidate."""
        return SuffixCopier(D, shortest=self.shortest, factor=self.factor, cap=self.cap)

    def reset(self) -> None:
        """Start an empty context."""
        self.automaton = SuffixAutomaton(self.cap)

    def look(self, committed: list[int]) -> Lookup:
        """The longest match's continuation."""
        for token in committed[len(self.automaton) :]:
            self.automaton.append(token)
        match = self.automaton.match
        if match.length < self.shortest:
            return Lookup()
        wanted = self.D
        if self.factor is not None:
            wanted = min(wanted, max(1, int(self.factor * match.length)))
        block = committed[match.end + 1 :][:wanted]
        tokens = tuple((block * (wanted // len(block) + 1))[:wanted])
        return Lookup((Candidate(match.end + 1, tokens),), match.length)
