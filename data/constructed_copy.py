"""ConstructedCopy: random tokens in which spans repeat, with no meaning at all (paper §4.3.1).

The baseline corpus: what a probe learns when copying is only a structure in the sequence.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pandas as pd
from jaxtyping import Int

from ..errors import SwitchSDError


def constructed_copy(
    n: int,
    *,
    vocab_size: int,
    avoid: Set[int] = frozenset(),
    seed: int = 0,
    span: tuple[int, int] = (8, 48),
    length: int = 256,
) -> pd.DataFrame:
    """`n` sequences of `length` token ids that alternate fresh and repeated random spans.

    Fresh tokens are uniform over the vocabulary without `avoid` (special ids). A repeated span
    copies tokens from a random earlier place. Both kinds have lengths uniform in `span`
    (inclusive; the last one is cut at `length`), so about half of the tokens are copies. Row i
    depends only on the options and (seed, i), not on `n`.

    Returns:
        DataFrame: prompt_id, family ("constructed_copy"), ids (list[int]).

    Raises:
        SwitchSDError: no rows asked for, an impossible span, or fewer than 2 usable tokens.
    """
    shortest, longest = span
    if n < 1:
        raise SwitchSDError(f"n is {n}; ask for at least 1 sequence")
    if not 1 <= shortest <= longest or length < 2 * longest:
        raise SwitchSDError(
            f"span {span} does not fit: it needs 1 <= low <= high <= length / 2 = {length // 2}"
        )
    usable = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, np.int64, len(avoid)))
    if len(usable) < 2:
        raise SwitchSDError(f"only {len(usable)} usable tokens; raise vocab_size or avoid fewer")
    rows = [_sequence(np.random.default_rng([seed, i]), usable, span, length) for i in range(n)]
    return pd.DataFrame(
        {
            "prompt_id": [f"constructed_copy/{seed}/{i:05d}" for i in range(n)],
            "family": "constructed_copy",
            "ids": rows,
        }
    )


def _sequence(
    rng: np.random.Generator, usable: Int[np.ndarray, " usable"], span: tuple[int, int], length: int
) -> list[int]:
    ids: list[int] = []
    repeat = False
    while len(ids) < length:
        size = int(rng.integers(span[0], span[1] + 1))
        if repeat:
            size = min(size, len(ids))
            start = int(rng.integers(0, len(ids) - size + 1))
            ids += ids[start : start + size]
        else:
            ids += rng.choice(usable, size).tolist()
        repeat = not repeat
    return ids[:length]
