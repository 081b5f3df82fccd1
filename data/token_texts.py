"""The text of each token, with characters that are split over several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence


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
