"""Which prompts train, which choose, which test: one assignment that every study shares.

Completions of one prompt at several temperatures, and pieces of one article, go together.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import SwitchSDError
from .metrics import split_groups

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
