"""The text of each token, with characters that are split over several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def token_texts(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """Text of each token alone; a character split over several tokens stands at the last of them.

    Those before it hold U+FFFD. `decode` turns ids into text.

    Example:
        >>> token_texts([1, 2], decode)  # two halves of one emoji
        ['\\ufffd', '🙂']
    """
    texts = [decode([token]) for token in ids]
    place = 0
    while place < len(texts):
        if "\ufffd" not in texts[place]:
            place += 1
            continue
        for end in range(place + 2, min(place + 9, len(ids) + 1)):
            whole = decode(list(ids[place:end]))
            if "\ufffd" not in whole:
                texts[place : end - 1] = ["\ufffd"] * (end - 1 - place)
                texts[end - 1] = whole
                place = end
                break
        else:
            place += 1
    return texts


class Pieces:
    """Text of a growing id sequence, in pieces that never end inside a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # since the last whole piece, after a little context
        self._shown = ""  # the text of those that is out already

    def add(self, token: int, *, last: bool) -> str:
        """What can be shown now that this token came; at the last one, everything."""
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        if text.endswith("\ufffd") and not last:
            return ""
        piece = text[len(self._shown) :]
        # Two tokens stay as context: some decoders treat the first token of a text differently.
        self._ids = self._ids[-2:]
        self._shown = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return piece
