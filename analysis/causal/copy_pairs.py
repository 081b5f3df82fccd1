"""Clean and corrupted texts for patching: the earlier occurrence of a copied span is made another.

The corrupted text has, in place of the earlier occurrence, other tokens of the same kinds, so that
lengths and positions stay while there is nothing left to copy the span from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Int

from ...data.labels import copy_labels
from ...errors import SwitchSDError
from ...probing.corpora.surface import TOKEN_CLASSES
from ..figures.causal import REGIONS
from .copy_texts import MATCH, CopyTexts

"""Where a position lies: in the earlier occurrence of what has been copied so far, on the token
that the next one is copied from, in the copy, at its end (where the probe reads and the next token
is predicted), or elsewhere."""


@dataclass(frozen=True)
class CopyPair:
    """A text that ends inside a copy, and the same text with nothing to copy from.

    Attributes:
        prompt_id: of the prompt.
        clean, corrupt: ids up to the token before the copied one.
        target: the copied token.
        copied_from: position of the token it is copied from.
        copy_start: position of the copy's first token.
    """

    prompt_id: str
    clean: list[int]
    corrupt: list[int]
    target: int
    copied_from: int
    copy_start: int

    def __post_init__(self) -> None:
        if len(self.clean) != len(self.corrupt):
            raise ValueError("a pair's texts differ in length")

    @property
    def changed(self) -> list[int]:
        """Positions at which the texts differ."""
        both = zip(self.clean, self.corrupt, strict=True)
        return [place for place, (a, b) in enumerate(both) if a != b]

    def regions(self, offset: int) -> Int[np.ndarray, " pos"]:
        """Index into `REGIONS` of every position, for a probe of that label offset."""
        n, length = len(self.clean), len(self.clean) - self.copy_start
        found = np.full(n, REGIONS.index("elsewhere"))
        found[max(0, self.copied_from - length) : self.copied_from] = REGIONS.index("source")
        found[self.copied_from] = REGIONS.index("after_source")
        found[self.copy_start :] = REGIONS.index("copy")
        found[n - max(offset, 1) :] = REGIONS.index("reader")
        return found


def kinds_pool(
    corpus: pd.DataFrame, token_class: Int[np.ndarray, " vocab"]
) -> dict[int, Int[np.ndarray, " token"]]:
    """Tokens of each class as they occur in training text, repeats included.

    Args:
        corpus: prompt_ids, completion_ids.
        token_class: of the tokenizer.
    """
    rows = [*corpus["prompt_ids"], *corpus["completion_ids"]]
    ids = np.concatenate([np.asarray(list(row), np.int64) for row in rows])
    classes = np.asarray(token_class)[ids]
    return {int(kind): ids[classes == kind] for kind in np.unique(classes)}


def copy_pairs(
    texts: CopyTexts,
    token_class: Int[np.ndarray, " vocab"],
    pool: dict[int, Int[np.ndarray, " token"]],
    *,
    per_prompt: int = 6,
    breaks: Set[int] = frozenset(),
    seed: int = 0,
) -> list[CopyPair]:
    """Pairs of each prompt, benchmark by benchmark in turn: texts that end inside a copy.

    The token to be copied is a word or a digit, and at least three tokens of the copy stand before
    it. Replaced are the earlier occurrence of the copy so far and of the token to be copied, and
    every other place before the copy where these last two tokens stand together. Special tokens
    stay.

    Args:
        texts: evaluation texts.
        token_class: of the tokenizer.
        pool: `kinds_pool` of training text.
        per_prompt: pairs of a prompt at most, spread over its copies.
        breaks: special-token ids.
        seed: of the replacements.

    Raises:
        SwitchSDError: no text has a copy with an earlier occurrence that lies apart from it.
    """
    random = np.random.default_rng(seed)
    kinds = np.asarray(token_class)
    found: dict[str, list[CopyPair]] = {prompt: [] for prompt in texts.in_turn()}
    for row, prompt in enumerate(texts.corpus["prompt_id"]):
        for start, end, source in _ends(texts, row, kinds, breaks):
            if len(found[prompt]) >= per_prompt:
                break
            ids = texts.ids(row)
            places = _places(ids, start, end, source)
            avoid = set(ids[start : end + 1]) | breaks
            corrupt = _corrupted(ids, places, avoid, kinds, pool, random)
            if corrupt is not None:
                pair = CopyPair(prompt, ids[:end], corrupt[:end], ids[end], source, start)
                found[prompt].append(pair)
    pairs = [pair for mine in found.values() for pair in mine]
    if not pairs:
        raise SwitchSDError(
            f"none of the {len(texts.corpus)} texts copies {MATCH + 1} tokens from an earlier "
            "place; use prompts that the model copies from"
        )
    return pairs


def _ends(
    texts: CopyTexts, row: int, token_class: Int[np.ndarray, " vocab"], breaks: Set[int]
) -> list[tuple[int, int, int]]:
    """(start of the copy, position to be copied, where from): of each copy the first, then the
    second of each, and so on."""
    ids = texts.ids(row)
    source = copy_labels(ids, breaks=breaks).source
    wanted = [TOKEN_CLASSES.index(name) for name in ("word_start", "word_inside", "digit")]
    found, start = [], texts.start(row)
    for position in range(texts.start(row), len(ids)):
        goes_on = position > start and source[position] == source[position - 1] + 1
        if source[position] < 0 or not goes_on:
            start = position
        long_enough = source[position] >= 0 and position - start >= MATCH
        apart = source[position] < start
        if long_enough and apart and token_class[ids[position]] in wanted:
            found.append((start, position, int(source[position])))
    nth: Counter[int] = Counter()
    ranked = []
    for start, end, at in found:
        ranked.append((nth[start], start, end, at))
        nth[start] += 1
    return [(start, end, at) for _, start, end, at in sorted(ranked)]


def _places(ids: list[int], start: int, end: int, source: int) -> Set[int]:
    """Positions to replace so that the token at `end` has nothing to be copied from."""
    places = set(range(source - (end - start), source + 1))
    for place in range(1, start):
        if ids[place - 1] == ids[end - 1] and ids[place] == ids[end]:
            places |= {place - 1, place}
    return places


def _corrupted(
    ids: list[int],
    places: Set[int],
    avoid: Set[int],
    token_class: Int[np.ndarray, " vocab"],
    pool: dict[int, Int[np.ndarray, " token"]],
    random: np.random.Generator,
) -> list[int] | None:
    """The ids with those at `places` replaced, each by one of its own class; None if none is."""
    changed = list(ids)
    for place in sorted(places):
        own = pool.get(int(token_class[ids[place]]), np.zeros(0, np.int64))
        others = own[~np.isin(own, list(avoid | {ids[place]}))]
        if len(others) == 0:
            return None
        changed[place] = int(others[random.integers(len(others))])
    return changed
