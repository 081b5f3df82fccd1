"""The texts that causal tests run on: every token with what is known of it before any test."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from jaxtyping import Int

from ...data.context_index import offered
from ...data.labels import copy_labels
from ...errors import SwitchSDError
from ...probing.corpora.token_table import given_match, surface_matrix, target_labels, token_table

MATCH = 3
"""Tokens that have to match before the context offers a candidate, as for the live gate."""


@dataclass(frozen=True)
class CopyTexts:
    """Texts, token by token.

    Attributes:
        corpus: prompt_id, family, prompt_ids, completion_ids; one row a text.
        tokens: `token_table` of it (completion tokens that are no special ones), and `candidate`,
            the id that the context offers there, -1 where it offers none.
        elsewhere: row, position of every token of prompt or completion that is not copied, not
            special and not the first: where a model is judged by its loss.
    """

    corpus: pd.DataFrame
    tokens: pd.DataFrame
    elsewhere: pd.DataFrame

    def __post_init__(self) -> None:
        if not self.tokens["copied"].any():
            raise SwitchSDError(
                f"none of the {len(self.corpus)} texts has a copy token; use prompts that the "
                "model copies from, or longer completions"
            )

    @cached_property
    def prompts(self) -> list[str]:
        """Prompt ids, each once."""
        return list(dict.fromkeys(self.corpus["prompt_id"]))

    @property
    def n_prompts(self) -> int:
        """How many prompts there are; completions of one prompt count once."""
        return len(self.prompts)

    def prompt_of(self, rows: Int[np.ndarray, " token"]) -> Int[np.ndarray, " token"]:
        """Number of the prompt of each of these corpus rows."""
        number = {prompt: place for place, prompt in enumerate(self.prompts)}
        return np.array([number[prompt] for prompt in self.corpus["prompt_id"]])[rows]

    def ids(self, row: int) -> list[int]:
        """Prompt and completion of a text."""
        prompt, completion = (self.corpus[f"{part}_ids"] for part in ("prompt", "completion"))
        return [*map(int, prompt.iloc[row]), *map(int, completion.iloc[row])]

    def start(self, row: int) -> int:
        """Tokens of a text's prompt."""
        return len(self.corpus["prompt_ids"].iloc[row])

    @property
    def offered(self) -> np.ndarray:
        """Tokens where the context offers a candidate and enough text follows to judge it."""
        return given_match(self.tokens)

    @property
    def goes_on(self) -> np.ndarray:
        """Tokens where at least `token_table.ACCEPTED` tokens of a copy would be accepted."""
        return target_labels(self.tokens, "accepted")

    @property
    def surface(self) -> np.ndarray:
        """Surface features of every token's past."""
        return surface_matrix(self.tokens)

    def in_turn(self) -> list[str]:
        """Prompt ids, benchmark by benchmark in turn: the first of each, the second of each …"""
        family = self.corpus.drop_duplicates("prompt_id").set_index("prompt_id")["family"]
        turn = family.groupby(family).cumcount().to_numpy()
        return family.index[np.argsort(turn, kind="stable")].tolist()

    def some(self, n_prompts: int) -> CopyTexts:
        """The texts of the first so many prompts, benchmark by benchmark in turn."""
        kept = set(self.in_turn()[:n_prompts])
        return self.where([row for row, p in enumerate(self.corpus["prompt_id"]) if p in kept])

    def where(self, rows: Sequence[int]) -> CopyTexts:
        """These texts only."""
        place = {row: new for new, row in enumerate(rows)}

        def cut(frame: pd.DataFrame) -> pd.DataFrame:
            kept = frame[frame["row"].isin(place)]
            return kept.assign(row=kept["row"].map(place)).reset_index(drop=True)

        corpus = self.corpus.iloc[list(rows)].reset_index(drop=True)
        return CopyTexts(corpus, cut(self.tokens), cut(self.elsewhere))


def copy_texts(
    corpus: pd.DataFrame, token_class: Int[np.ndarray, " vocab"], *, breaks: Set[int] = frozenset()
) -> CopyTexts:
    """Label the texts of a corpus.

    Args:
        corpus: prompt_id, family, prompt_ids, completion_ids.
        token_class: `surface.token_classes` of the tokenizer.
        breaks: special-token ids.

    Raises:
        SwitchSDError: no completion token, or none that is copied.
    """
    tokens = token_table(corpus, token_class, breaks=breaks)
    candidates, elsewhere = [], []
    for row in range(len(corpus)):
        prompt = list(corpus["prompt_ids"].iloc[row])
        ids = [int(token) for token in prompt + list(corpus["completion_ids"].iloc[row])]
        walked = offered(ids, len(prompt), n=MATCH, D=1)
        following = np.array([c[0].tokens[0] if c else -1 for _, c in walked], np.int64)
        mine = tokens.loc[tokens["row"] == row, "position"].to_numpy(np.int64)
        candidates.append(following[mine - len(prompt)])
        judged = ~copy_labels(ids, breaks=breaks).copied & ~np.isin(ids, list(breaks))
        judged[0] = False
        elsewhere.append(pd.DataFrame({"row": row, "position": np.flatnonzero(judged)}))
    return CopyTexts(
        corpus.reset_index(drop=True),
        tokens.assign(candidate=np.concatenate(candidates)),
        pd.concat(elsewhere, ignore_index=True),
    )
