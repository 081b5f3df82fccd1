"""Accidental repetitions: the last tokens stood there before, and the text goes another way.

The paper's Figure 2. A copy made there is rejected whole. They are found in a trace, in the
model's own text, outside loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ...data.labels import loop_start
from ...decoding.drafters.copy import RecentCopier
from ..traces.trace import CounterfactualTrace
from .paths import copy_drafts

SHOWN_BEFORE, SHOWN_AFTER = 24, 10
"""Tokens of context around an example."""


def repetition_rates(trace: CounterfactualTrace, *, n: int = 3, D: int = 10) -> pd.DataFrame:
    """How often the newest candidate is wrong at its first token.

    Args:
        trace: a greedy trace.
        n: tokens that have to match.
        D: tokens copied.

    Returns:
        set, and each with and `_without_loops`: positions, matches (with a candidate), accidental
        (of these, nothing would be accepted), share.
    """
    positions = _positions(trace, n, D)
    rows: list[dict[str, Any]] = []
    for name, mine in positions.groupby("set", sort=False):
        row: dict[str, Any] = {"set": name}
        for suffix, part in (("", mine), ("_without_loops", mine[~mine["in_loop"]])):
            wrong = part["matches"] & (part["accepted"] == 0)
            found = int(part["matches"].sum())
            row |= {
                f"positions{suffix}": len(part),
                f"matches{suffix}": found,
                f"accidental{suffix}": int(wrong.sum()),
                f"share{suffix}": float(wrong.sum() / found) if found else np.nan,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def repetition_examples(
    trace: CounterfactualTrace, tokenizer: Any, *, count: int = 3, n: int = 3, D: int = 10
) -> pd.DataFrame:
    """The longest accidental repetitions of each set, at most one a prompt.

    Args:
        trace: a greedy trace.
        tokenizer: of its model.
        count: examples of each set.
        n: tokens that have to match.
        D: tokens that would be copied.

    Returns:
        set, prompt_id, position, match_length, score, earlier (the text up to the earlier
        occurrence's end), copied (what would be copied), before (the text up to here), text (what
        the model wrote).
    """
    positions = _positions(trace, n, D)
    wrong = positions[positions["matches"] & (positions["accepted"] == 0) & ~positions["in_loop"]]
    longest = wrong.sort_values("match_length", ascending=False, kind="stable")
    chosen = longest.drop_duplicates("prompt_id").groupby("set", sort=False).head(count)
    order = {name: place for place, name in enumerate(dict.fromkeys(positions["set"]))}
    chosen = chosen.sort_values("set", key=lambda names: names.map(order), kind="stable")
    texts = dict(zip(trace.prompts["prompt_id"], trace.texts, strict=True))

    def words(ids: list[int]) -> str:
        return str(tokenizer.decode(ids))

    rows = []
    for row in chosen.to_dict("records"):
        ids, at = texts[row["prompt_id"]], int(row["position"])
        candidate = RecentCopier(1, D, n).look(ids[:at]).candidates[0]
        rows.append(
            {
                "set": row["set"],
                "prompt_id": row["prompt_id"],
                "position": at,
                "match_length": int(row["match_length"]),
                "score": row["score"],
                "earlier": words(ids[max(0, candidate.source - SHOWN_BEFORE) : candidate.source]),
                "copied": words(list(candidate.tokens)),
                "before": words(ids[max(0, at - SHOWN_BEFORE) : at]),
                "text": words(ids[at : at + SHOWN_AFTER]),
            }
        )
    return pd.DataFrame(rows, columns=_EXAMPLE)


def _positions(trace: CounterfactualTrace, n: int, D: int) -> pd.DataFrame:
    """Every position at which a draft could still be accepted."""
    candidates, drafted = copy_drafts(trace, RecentCopier(1, D, n))
    starts = np.array(
        [
            int(n_prompt) + loop_start(ids[int(n_prompt) :])
            for ids, n_prompt in zip(trace.texts, trace.prompts["n_prompt"], strict=True)
        ]
    )
    prompts = trace.prompts.iloc[trace.prompt]
    table = pd.DataFrame(
        {
            "set": prompts["set"].to_numpy(),
            "prompt_id": prompts["prompt_id"].to_numpy(),
            "position": trace.committed,
            "matches": candidates.some,
            "match_length": candidates.match_length,
            "accepted": drafted.accepted,
            "score": trace.score,
            "in_loop": trace.committed >= starts[trace.prompt],
        }
    )
    return table[trace.limit > 0]


_EXAMPLE = [
    *("set", "prompt_id", "position", "match_length", "score"),
    *("earlier", "copied", "before", "text"),
]
