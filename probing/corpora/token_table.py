"""Everything the studies know about a completion token apart from activations, in one table.

One row a token: the paper's label, the copy path's accepted length there, whether it lies in a
loop, and what the surface says at the moment the live gate would decide about it.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...data.context_index import SPAN, copy_yield
from ...data.labels import copy_labels, loop_start
from ...errors import SwitchSDError
from .surface import SURFACE_NAMES, surface_features

GATE_LAG = 2
"""The live gate decides about the token at t from the hidden state at t − 2: the anchor, at t − 1,
is sampled but not processed yet."""

TARGETS = ("copied", "accepted", "accepted_given_match")
"""The paper's label; whether the copy path would have had `ACCEPTED` tokens accepted; and the same
asked only where the context offers a candidate, which is all that a gate has to know."""

ACCEPTED = 3
"""Accepted copy length that counts as worth a copy step."""


def token_table(
    corpus: pd.DataFrame,
    token_class: Int[np.ndarray, " vocab"],
    *,
    n_train: int = 5,
    breaks: Set[int] = frozenset(),
) -> pd.DataFrame:
    """The label table of a corpus, with copy yield (W = 1, n = 3) and surface features.

    Args:
        corpus: prompt_id, family, prompt_ids, completion_ids.
        token_class: `surface.token_classes` of the tokenizer.
        n_train: tokens a verbatim span needs.
        breaks: special-token ids.

    Returns:
        The columns of `dataset.label_table`; `anchor_id` and `read_id` (the tokens at
        t − 1 and t − 2, where the live gate reads), `accepted` (copy length, 0 … 20), `offered`
        (the context offers a
        candidate), `follows` (tokens from t to the end of the text, at most 20), and
        `SURFACE_NAMES`, computed from the tokens before t only.

    Raises:
        SwitchSDError: no completion token, or ids outside the tokenizer's vocabulary.
    """
    labels = label_table(corpus, n_train=n_train, breaks=breaks)
    parts = []
    for row in labels["row"].unique().tolist():
        rows = labels[labels["row"] == row]
        prompt = list(corpus["prompt_ids"].iloc[row])
        ids = prompt + list(corpus["completion_ids"].iloc[row])
        if len(prompt) < GATE_LAG:
            raise SwitchSDError(
                f"text {row} begins with {len(prompt)} context tokens; give at least {GATE_LAG}"
            )
        positions = rows["position"].to_numpy()
        yields = copy_yield(ids, len(prompt) - 1)
        at = positions - len(prompt)  # the first anchor is the prompt's last token
        known = pd.DataFrame(
            {
                "anchor_id": np.array(ids)[positions - 1],
                "read_id": np.array(ids)[positions - GATE_LAG],
                "accepted": yields["accepted"][at],
                "offered": yields["match_length"][at] > 0,
                "follows": np.minimum(len(ids) - positions, SPAN),
            }
        )
        surface = surface_features(ids, token_class)[positions - 1]  # the anchor's row
        known[list(SURFACE_NAMES)] = surface
        parts.append(known.set_index(rows.index))
    return labels.join(pd.concat(parts))


def target_labels(tokens: pd.DataFrame, target: str) -> Bool[np.ndarray, " token"]:
    """The labels of a target: `copied`, or at least `ACCEPTED` tokens of copy accepted.

    Raises:
        SwitchSDError: no such target.
    """
    if target not in TARGETS:
        raise SwitchSDError(f"unknown target {target!r}: choose {', '.join(TARGETS)}")
    if target == "copied":
        return tokens["copied"].to_numpy()
    return (tokens["accepted"] >= ACCEPTED).to_numpy()


def target_known(tokens: pd.DataFrame, target: str) -> Bool[np.ndarray, " token"]:
    """Where the target is decided: an accepted length needs `ACCEPTED` tokens of text to compare.

    A text that was cut by its budget says nothing about what would have come.
    """
    if target == "copied":
        return np.ones(len(tokens), dtype=bool)
    enough = (tokens["follows"] >= ACCEPTED).to_numpy()
    return enough & tokens["offered"].to_numpy() if target == "accepted_given_match" else enough


def given_match(tokens: pd.DataFrame) -> Bool[np.ndarray, " token"]:
    """Where the context offers a candidate and enough text follows to say whether it was right."""
    return target_known(tokens, "accepted_given_match")


def surface_matrix(tokens: pd.DataFrame) -> Float[np.ndarray, "token feat"]:
    """The surface features of each token."""
    return tokens[list(SURFACE_NAMES)].to_numpy(np.float32)


def label_table(
    corpus: pd.DataFrame, *, n_train: int = 5, breaks: Set[int] = frozenset()
) -> pd.DataFrame:
    """One row a completion token; special tokens are left out.

    Args:
        corpus: prompt_id, family, prompt_ids, completion_ids.
        n_train: tokens a verbatim span needs.
        breaks: special-token ids (`data.chat.special_ids`).

    Returns:
        row (index into `corpus`), prompt_id, family, position, id, copied, source (position copied
        from, -1), in_loop.

    Raises:
        SwitchSDError: the corpus holds no completion token.
    """
    parts = []
    columns = (corpus[name] for name in ("prompt_id", "family", "prompt_ids", "completion_ids"))
    for row, (prompt_id, family, *texts) in enumerate(zip(*columns, strict=True)):
        prompt, completion = map(list, texts)
        ids = np.array(prompt + completion)
        labels = copy_labels(ids, n_train=n_train, breaks=breaks)
        positions = np.arange(len(prompt), len(ids))
        loop = len(prompt) + loop_start(completion) if completion else len(ids)
        part = pd.DataFrame(
            {
                "row": row,
                "prompt_id": prompt_id,
                "family": family,
                "position": positions,
                "id": ids[positions],
                "copied": labels.copied[positions],
                "source": labels.source[positions],
                "in_loop": positions >= loop,
            }
        )
        parts.append(part[~part["id"].isin(breaks)])
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if table.empty:
        raise SwitchSDError("the corpus has no completion tokens to label; complete some prompts")
    return table
