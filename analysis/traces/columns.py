"""What one prompt's positions table holds: what every path would have had accepted, everywhere.

Under greedy decoding the text is the same whatever drafts it, so one pass over it knows the outcome
of every step that any policy could begin: one row for each committed length c. Copy candidates
depend on the c committed ids only. Everything here works on ids and numbers; no model is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from ...data.context_index import Candidate, common_prefix, offered
from ...decoding.drafters.copy import Lookup
from ...decoding.neural import TREE
from ...decoding.step.tree_shape import TreeShape
from ...errors import SwitchSDError

CANDIDATES = 8
"""W: candidates kept at each position, each of `SPAN` tokens (D)."""

GAMMA = 10
"""Lookahead of the neural chains; a shorter one accepts the lesser of its γ and what is kept."""


@dataclass(frozen=True)
class TraceSettings:
    """What is traced.

    Attributes:
        max_new_tokens: budget of each prompt.
        ns: numbers of tokens that have to match for a copy.
        trees: shapes of the EAGLE-3 trees.

    Raises:
        SwitchSDError: a value below 1, or none.
    """

    max_new_tokens: int = 128
    ns: tuple[int, ...] = (1, 2, 3, 4, 5)
    trees: tuple[TreeShape, ...] = (TREE, TreeShape(60, 5, 10))

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise SwitchSDError(
                f"max_new_tokens = {self.max_new_tokens}: ask for at least one token"
            )
        if min(self.ns, default=0) < 1:
            raise SwitchSDError(f"n = {list(self.ns)}: at least one token has to match")


@dataclass(frozen=True)
class Text:
    """A prompt and the target's own greedy continuation.

    Attributes:
        ids: both.
        n_prompt: tokens of the prompt.
        finish: why the text ended: eos, length or context.
        max_new_tokens: budget it was made under.
        n_ctx: the target's context.
    """

    ids: tuple[int, ...]
    n_prompt: int
    finish: str
    max_new_tokens: int
    n_ctx: int

    @property
    def positions(self) -> Int[np.ndarray, pos]:
        """Every committed length c at which a step can begin; it emits tokens c, c + 1, …"""
        return np.arange(self.n_prompt, len(self.ids))

    @property
    def limits(self) -> Int[np.ndarray, pos]:
        """How deep a draft may be at each position, as the decode loop limits it."""
        budget = self.max_new_tokens - (self.positions - self.n_prompt)
        return np.minimum(budget, self.n_ctx - self.positions) - 1


def positions_table(
    prompt_id: str,
    text: Text,
    *,
    scores: Sequence[float],
    gaps: Sequence[float],
    ns: Sequence[int],
    stops: frozenset[int],
    drafted: Mapping[str, Int[np.ndarray, pos]],
) -> pd.DataFrame:
    """One row a position.

    Args:
        prompt_id: of the prompt.
        text: prompt and continuation.
        scores: the probe's at every processed position; empty without one.
        gaps: between the two largest logits, one for each new token.
        ns: numbers of tokens that have to match for a copy.
        stops: ids behind which a copy does not go on.
        drafted: columns of the neural drafts; those named …_room are no accepted lengths.

    Returns:
        prompt_id, position, limit, score, gap, the columns of `copy_columns` for each n, and the
        drafted ones.
    """
    places = text.positions
    newest = places - 2  # the newest processed token lies before the anchor
    known = np.array([*scores, np.nan], dtype=np.float32)
    inside = (newest >= 0) & (newest < len(scores))
    columns: dict[str, object] = {
        "position": places.astype(np.int32),
        "limit": text.limits.astype(np.int32),
        "score": known[np.where(inside, newest, -1)],
        "gap": np.array(gaps, dtype=np.float32),
    }
    for n in ns:
        columns |= copy_columns(text, n, stops)
    for name, values in drafted.items():
        wide = name.endswith("_room") or values.dtype == np.int32
        columns[name] = values.astype(np.int32 if wide else np.int8)
    table = pd.DataFrame(columns)
    table.insert(0, "prompt_id", prompt_id)
    return table


def copy_columns(text: Text, n: int, stops: frozenset[int]) -> dict[str, object]:
    """What could be copied at every position, newest candidate first.

    Returns:
        match_length_n…: of the newest candidate, 0 without one; and a list over candidates for
        copy_n…: tokens of each that are accepted;
        copy_len_n…: its tokens, cut behind a stop;
        copy_shared_n…: of these, the first ones that an earlier candidate has too, so that at
        depth D it adds max(0, min(D, len) − shared) nodes to the draft.
    """
    matched, judged = [], []
    for place, limit, (match, found) in zip(
        text.positions,
        text.limits,
        offered(text.ids, text.n_prompt, n=n, W=CANDIDATES),
        strict=True,
    ):
        matched.append(match)
        judged.append(judge(found, text.ids[place : place + limit], stops).astype(np.int8))
    return {
        f"match_length_n{n}": np.array(matched, dtype=np.int16),
        f"copy_n{n}": [accepted for accepted, _, _ in judged],
        f"copy_shared_n{n}": [shared for _, shared, _ in judged],
        f"copy_len_n{n}": [length for _, _, length in judged],
    }


def judge(
    candidates: Sequence[Candidate], truth: Sequence[int], stops: frozenset[int]
) -> Int[np.ndarray, "3 candidate"]:
    """Of each candidate: accepted tokens, those that an earlier one has too, and its length.

    Args:
        candidates: newest first; each is cut behind a stop.
        truth: what the text goes on with, as far as a draft may reach.
        stops: ids behind which a copy does not go on.
    """
    drafts = [Lookup((one,)).tree(len(one.tokens), stops).tokens for one in candidates]
    rows = [
        (
            common_prefix(tokens, truth),
            max((common_prefix(tokens, other) for other in drafts[:rank]), default=0),
            len(tokens),
        )
        for rank, tokens in enumerate(drafts)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3).T


def chain_lengths(
    hits: Bool[np.ndarray, "pos guess"], room: Int[np.ndarray, pos]
) -> Int[np.ndarray, pos]:
    """Accepted lengths of chains whose k-th guess is right or not, where they may be so deep."""
    return np.minimum(np.cumprod(hits, axis=1).sum(axis=1), room)


def windows(hits: Bool[np.ndarray, pos], width: int) -> Bool[np.ndarray, "pos width"]:
    """What follows each place, itself first; nothing is right behind the end."""
    padded = np.concatenate([hits, np.zeros(width - 1, dtype=bool)])
    return np.lib.stride_tricks.sliding_window_view(padded, width)


def nodes_of_tree(shape: TreeShape, room: int, draft_vocab_size: int) -> int:
    """Draft tokens of a tree where the drafter may draft `room` deep."""
    levels = min(shape.depth + 1, room)
    if levels < 1:
        return 0
    width = min(shape.top_k, draft_vocab_size)
    return min(shape.total - 1, width + (levels - 1) * width**2)
