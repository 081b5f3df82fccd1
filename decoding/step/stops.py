"""Where a text ends: end-of-text ids and stop strings, also inside an accepted block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import SwitchSDError


class Stops:
    """Finds the first token at which generation has to end.

    Args:
        eos_ids: ids that end the text; the id itself is kept, as transformers keeps it.
        strings: texts that end it, with the token that completes them kept.
        tokenizer: needed for `strings`.
        when: any further condition on the new tokens so far, asked after each one.

    Raises:
        SwitchSDError: an empty stop string, or strings without a tokenizer.
    """

    def __init__(
        self,
        eos_ids: Sequence[int],
        strings: Sequence[str] = (),
        tokenizer: Any = None,
        when: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        if any(not string for string in strings):
            raise SwitchSDError("an empty stop string would end every text at once; leave it out")
        if strings and tokenizer is None:
            raise SwitchSDError("stop strings need a tokenizer; this model was loaded without one")
        self.eos_ids = frozenset(eos_ids)
        self._strings = tuple(strings)
        self._tokenizer = tokenizer
        self._when = when
        # no token carries less than one character of decoded text for long: this many tokens back
        # always hold the longest stop string (4 bytes a character at worst)
        self._reach = 4 * max((len(string) for string in strings), default=0) + 4

    def cut(self, generated: Sequence[int], new: Sequence[int]) -> int | None:
        """How many of `new` stay when the text ends inside them; None if it goes on."""
        for kept, token in enumerate(new, start=1):
            if token in self.eos_ids or self._completes(generated, new[:kept]):
                return kept
            if self._when is not None and self._when([*generated, *new[:kept]]):
                return kept
        return None

    def _completes(self, generated: Sequence[int], new: Sequence[int]) -> bool:
        if not self._strings:
            return False
        recent = [*generated, *new][-self._reach :]
        text = self._tokenizer.decode(recent)
        return any(string in text for string in self._strings)
