"""Which prompts train, which choose, which test: one assignment that every study shares.

Completions of one prompt at several temperatures, and pieces of one article, go together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from ...errors import SwitchSDError

PARTS = ("train", "valid", "test")


def assign_parts(prompt_ids: pd.Series, families: pd.Series, *, seed: int) -> pd.Series:
    """Prompt id → `train` (60 %), `valid` (20 %) or `test` (20 %), each family in these shares.

    Args:
        prompt_ids: one entry a completion; repeats are one prompt.
        families: of each.
        seed: of the draw.

    Raises:
        SwitchSDError: too few prompts, or a prompt in two families.
    """
    prompts = pd.DataFrame({"prompt_id": prompt_ids, "family": families}).drop_duplicates()
    names = prompts["prompt_id"].to_numpy()
    split = split_groups(names, seed=seed, stratify_by=prompts["family"].to_numpy())
    part = np.empty(len(names), dtype=object)
    for name, members in zip(PARTS, split, strict=True):
        part[members] = name
    return pd.Series(part, index=names, name="part").astype("str")


def parts_of(prompt_ids: pd.Series, assigned: pd.Series) -> np.ndarray:
    """The part of each token.

    Raises:
        SwitchSDError: a prompt that was not assigned.
    """
    found = prompt_ids.map(assigned)
    if found.isna().any():
        missing = prompt_ids[found.isna()].iloc[0]
        raise SwitchSDError(f"prompt {missing!r} belongs to no part; split this corpus first")
    return found.to_numpy()


def split_groups(
    groups: Shaped[np.ndarray, " n"],
    *,
    fractions: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int,
    stratify_by: Shaped[np.ndarray, " n"] | None = None,
) -> tuple[Int[np.ndarray, " _"], ...]:
    """Token indices of train, validation and test; all tokens of a prompt are in one of them.

    With `stratify_by` (a family a token) each family is shared out in the same fractions.

    Raises `SwitchSDError` when there are too few prompts for every part to get one.
    """
    if min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise SwitchSDError(f"fractions must be positive and sum to 1, got {tuple(fractions)}")
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    family = np.zeros(len(names), int)
    if stratify_by is not None:
        kinds = np.unique(np.asarray(stratify_by), return_inverse=True)[1]
        family[codes] = kinds
        if (family[codes] != kinds).any():
            raise SwitchSDError("a prompt belongs to two families; give every prompt one family")
    random = np.random.default_rng(seed)
    order = random.permutation(len(names))
    order = order[np.argsort(random.permutation(family.max(initial=0) + 1)[family[order]])]
    # Deal out prompts family by family, each to the part that is furthest behind its share: any
    # stretch of the order, so any family, comes out close to the fractions.
    shares, dealt, part = np.asarray(fractions), np.zeros(len(fractions)), np.empty(len(names), int)
    for count, prompt in enumerate(order, start=1):
        part[prompt] = np.argmax(np.round(count * shares - dealt, 9))
        dealt[part[prompt]] += 1
    if (dealt == 0).any():
        need = int(np.ceil(1 / min(fractions) - 1e-9))
        raise SwitchSDError(
            f"{len(names)} prompts are too few to split {tuple(fractions)}; use at least {need}"
        )
    return tuple(np.flatnonzero(part[codes] == index) for index in range(len(fractions)))
