"""A labelled corpus with its activations: what every study takes; and a split of one by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...data.labels import OFFSETS
from ...errors import SwitchSDError
from ..activations.store import ActivationStore
from ..corpora.partition import split_groups

_STRIDE = 2**24  # positions a text at most, to make one number of (row, position)


@dataclass(frozen=True)
class ProbingSet:
    """Labelled tokens and the store that holds their activations.

    Attributes:
        name: of the corpus, as in tables.
        tokens: `token_table` of the corpus, index 0 … n − 1.
        store: activations of the same corpus.
        part: `train`, `valid` or `test` of each token; evaluation sets are all `test`.
    """

    name: str
    tokens: pd.DataFrame
    store: ActivationStore
    part: np.ndarray

    def __post_init__(self) -> None:
        if len(self.part) != len(self.tokens):
            raise ValueError(f"{len(self.part)} parts for {len(self.tokens)} tokens")

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        columns = self.store.columns(["row", "position"])
        keys = columns["row"].to_numpy() * _STRIDE + columns["position"].to_numpy()
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @property
    def groups(self) -> np.ndarray:
        """Prompt of each token."""
        return self.tokens["prompt_id"].to_numpy()

    def rows(self, part: str) -> Int[np.ndarray, " row"]:
        """Tokens of a part."""
        return np.flatnonzero(self.part == part)

    def activations(
        self, site: str | Sequence[str], rows: Int[np.ndarray, " row"], *, lag: int
    ) -> Float[np.ndarray, "row width"]:
        """Activations `lag` positions before each of these tokens; several sites side by side.

        Raises:
            SwitchSDError: a site or position the store does not hold.
        """
        sites = [site] if isinstance(site, str) else list(site)
        keys, order = self._places
        asked = self.tokens[["row", "position"]].to_numpy(np.int64)[rows]
        wanted = asked[:, 0] * _STRIDE + asked[:, 1] - lag
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        if not (keys[place] == wanted).all():
            raise SwitchSDError(
                f"{self.store.path} lacks positions {lag} before some tokens of {self.name}; "
                "capture this corpus again"
            )
        index = order[place]
        return np.concatenate([self.store.read(name, index).numpy() for name in sites], axis=1)


@dataclass(frozen=True)
class ProbeData:
    """Labelled rows of a store, split by prompt.

    Attributes:
        index: row of the store for each labelled token.
        tokens: the labelled tokens (`label_table`), in the same order.
        train, valid, test: positions in `index`.
    """

    index: Int[np.ndarray, " token"]
    tokens: pd.DataFrame
    train: Int[np.ndarray, " _"]
    valid: Int[np.ndarray, " _"]
    test: Int[np.ndarray, " _"]

    @property
    def y(self) -> np.ndarray:
        """The paper's label."""
        return self.tokens["copied"].to_numpy()

    @property
    def groups(self) -> np.ndarray:
        """Prompt of each token."""
        return self.tokens["prompt_id"].to_numpy()


def probe_data(
    columns: pd.DataFrame, labels: pd.DataFrame, *, offset: int, seed: int = 0
) -> ProbeData:
    """Match stored positions with the tokens they answer for; 60 % train, 20 % valid, 20 % test.

    Args:
        columns: the store's `row` and `position`.
        labels: `label_table` of the same corpus.
        offset: the hidden state at position j answers for the token at j + offset.
        seed: of the split by prompt.

    Raises:
        SwitchSDError: too few prompts to split, or an offset that is not 0, 1 or 2.
    """
    if offset not in OFFSETS:
        raise SwitchSDError(f"label offset {offset}: choose one of {', '.join(map(str, OFFSETS))}")
    stored = columns[["row"]].assign(position=columns["position"] + offset)
    tokens = labels.merge(stored.assign(store_row=np.arange(len(stored))), on=["row", "position"])
    index, prompts = tokens.pop("store_row").to_numpy(), tokens["prompt_id"].to_numpy()
    split = split_groups(prompts, seed=seed, stratify_by=tokens["family"].to_numpy())
    return ProbeData(index, tokens, *split)
