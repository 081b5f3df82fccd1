"""What the text alone says about a position: repetition and token class, no model.

The surface baseline is the same logistic regression on these features. A probe that does not beat
it only restates the rule that made its labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from ...errors import SwitchSDError

MATCH_CAP = 32
"""Longest match that is told from longer ones."""

TOKEN_CLASSES = ("word_start", "word_inside", "digit", "punctuation", "whitespace", "special")

SURFACE_NAMES = (
    "match_length",  # longest suffix of the context that occurred before, at most MATCH_CAP
    "log_match_length",
    "match_of_3",  # whether a 3-gram match exists: CopySpec's trigger
    "log_distance",  # to the most recent earlier occurrence of that suffix; 0 without one
    "log_count_1",  # earlier occurrences of the last token
    "log_count_3",  # earlier occurrences of the last 3 tokens
    "continued",  # the token is what copying on from the position before would have given
    "continued_share_16",  # share of the last 16 positions that were
    *TOKEN_CLASSES,
)

_SPACES = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"})


class Tokenizer(Protocol):
    """What is read of a tokenizer (transformers' have it)."""

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of control tokens."""

    def __len__(self) -> int: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The raw vocabulary entries."""


def token_classes(tokenizer: Tokenizer) -> Int[np.ndarray, " vocab"]:
    """Index into `TOKEN_CLASSES` for every id, from its vocabulary entry.

    A word token without a leading space counts as inside, also at the start of a line.
    """
    special = set(tokenizer.all_special_ids)
    entries = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    names = (
        "special" if token in special or entry is None else _class_of(entry)
        for token, entry in enumerate(entries)
    )
    return np.array([TOKEN_CLASSES.index(name) for name in names])


def surface_features(
    ids: Sequence[int], token_class: Int[np.ndarray, " vocab"]
) -> Float[np.ndarray, "pos feat"]:
    """Features of every position, columns as in `SURFACE_NAMES`.

    Row j depends on ids[: j + 1] only. Time O(n log n) at a fixed `MATCH_CAP`.

    Raises `SwitchSDError` when an id lies outside the vocabulary of `token_class`.
    """
    tokens = np.asarray(ids, np.int64)
    n = len(tokens)
    if n == 0:
        return np.zeros((0, len(SURFACE_NAMES)), np.float32)
    if tokens.min() < 0 or tokens.max() >= len(token_class):
        raise SwitchSDError(
            f"token ids run from {tokens.min()} to {tokens.max()}, the tokenizer has "
            f"{len(token_class)}; use the tokenizer the corpus was made with"
        )
    length, source, counts = _matches(tokens)
    continued = np.zeros(n)
    copied = np.flatnonzero(source[:-1] >= 0)
    continued[copied + 1] = tokens[source[copied] + 1] == tokens[copied + 1]
    summed = np.concatenate([[0], np.cumsum(continued)])
    end = np.arange(1, n + 1)
    start = np.maximum(end - 16, 0)
    columns = [
        length,
        np.log1p(length),
        length >= 3,
        np.log1p(np.where(source >= 0, end - 1 - source, 0)),
        np.log1p(counts[1]),
        np.log1p(counts[3]),
        continued,
        (summed[end] - summed[start]) / (end - start),
    ]
    classes = np.eye(len(TOKEN_CLASSES))[token_class[tokens]]
    return np.column_stack([*columns, classes]).astype(np.float32)


def _matches(
    tokens: Int[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], dict[int, Int[np.ndarray, " n"]]]:
    """Longest matched suffix, end of its most recent earlier occurrence (−1), n-gram counts.

    N-grams get dense codes, length by length: an n-gram is the code of its first n − 1 tokens and
    its last token. Among equal codes in order of position, the one before is the most recent
    earlier occurrence and the rank is the number of earlier ones.
    """
    n = len(tokens)
    length, source = np.zeros(n, np.int64), np.full(n, -1)
    counts = {size: np.zeros(n, np.int64) for size in (1, 3)}
    ends, codes = np.arange(n), tokens  # n-grams still of interest, by their last position
    for size in range(1, MATCH_CAP + 1):
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        fresh = np.append(True, ordered[1:] != ordered[:-1])
        first = np.flatnonzero(fresh)
        group = np.cumsum(fresh) - 1
        again = order[~fresh]
        length[ends[again]] = size
        source[ends[again]] = ends[order[np.flatnonzero(~fresh) - 1]]
        if size in counts:
            counts[size][ends[order]] = np.arange(len(order)) - first[group]
        # A longer n-gram can only repeat where this one does.
        sizes = np.diff(np.append(first, len(order)))
        dense = np.full(n, -1)
        dense[ends[order]] = np.where(sizes[group] > 1, group, -1)
        ends = np.flatnonzero(dense[:-1] >= 0) + 1
        if len(ends) == 0:
            break
        codes = dense[ends - 1] * (tokens.max() + 1) + tokens[ends]
    return length, source, counts


def _class_of(entry: str) -> str:
    text = entry.translate(_SPACES)
    core = text.strip()
    if not core or core in ("<0x0A>", "<0x09>", "<0x0D>", "<0x20>"):  # byte fallback tokens
        return "whitespace"
    if core.isdigit():
        return "digit"
    if any(letter.isalnum() for letter in core):
        return "word_start" if text[0] == " " else "word_inside"
    return "punctuation"
