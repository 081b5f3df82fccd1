"""From a corpus to labelled tokens, and from there to the rows of a store a probe is fitted on."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Shaped

from ..data.labels import OFFSETS, copy_labels, loop_start
from ..errors import SwitchSDError
from .metrics import split_groups


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


@dataclass(frozen=True)
class ProbeData:
    """Labelled rows of a store, split by prompt.

    Attributes:
        index: row of the store for each labelled token.
        tokens: the labelled tokens (`label_table`), in the same order.
        train, valid, test: positions in `index`.
    """

    index: Int[np.ndarray, token]
    tokens: pd.DataFrame
    train: Int[np.ndarray, _]
    valid: Int[np.ndarray, _]
    test: Int[np.ndarray, _]

    @property
    def y(self) -> Bool[np.ndarray, token]:
        """The paper's label."""
        return self.tokens["copied"].to_numpy()

    @property
    def groups(self) -> Shaped[np.ndarray, token]:
        """Prompt of each token."""
        return self.tokens["prompt_id"].to_numpy()


def align(
    columns: pd.DataFrame, labels: pd.DataFrame, offset: int
) -> tuple[np.ndarray, pd.DataFrame]:
    """Match stored positions with the tokens they answer for.

    Args:
        columns: the store's `row` and `position`.
        labels: `label_table` of the same corpus.
        offset: the hidden state at position j answers for the token at j + offset.

    Returns:
        (store row of each matched token, the matched tokens).
    """
    if offset not in OFFSETS:
        raise SwitchSDError(f"label offset {offset}: choose one of {', '.join(map(str, OFFSETS))}")
    stored = pd.DataFrame(
        {
            "row": columns["row"].to_numpy(),
            "position": columns["position"].to_numpy() + offset,
            "store_row": np.arange(len(columns)),
        }
    )
    merged = labels.merge(stored, on=["row", "position"], how="inner")
    return merged.pop("store_row").to_numpy(), merged


def probe_data(
    columns: pd.DataFrame, labels: pd.DataFrame, *, offset: int, seed: int = 0
) -> ProbeData:
    """Align at `offset` and split by prompt into 60 % train, 20 % validation, 20 % test.

    Raises:
        SwitchSDError: too few prompts to split, or an offset that is not 0, 1 or 2.
    """
    index, tokens = align(columns, labels, offset)
    parts = split_groups(
        tokens["prompt_id"].to_numpy(), seed=seed, stratify_by=tokens["family"].to_numpy()
    )
    return ProbeData(index, tokens, *parts)
