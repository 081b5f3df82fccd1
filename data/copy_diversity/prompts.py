"""CopyDiversity: varied prompts that make a model copy, and ones whose repetition is accidental.

The paper's controlled probing dataset (§3.2) as a generator: template families filled from word
pools, tables, logs and random programs. The completions come from the target model itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pandas as pd

from ...errors import SwitchSDError
from . import (
    templates_code,
    templates_conversation,
    templates_data,
    templates_negative,
    templates_pattern,
    templates_text,
    templates_unrelated,
)
from .layout import Family

_MODULES = (
    *(templates_text, templates_code, templates_data, templates_conversation),
    *(templates_negative, templates_unrelated, templates_pattern),
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in _MODULES
    for family in vars(module).values()
    if isinstance(family, Family)
}
"""Every template family by name; at least 35 % of them are accidental-repetition negatives."""


def copy_diversity(
    n_prompts: int = 600,
    *,
    seed: int = 0,
    families: Sequence[str] | None = None,
    difficulty: tuple[float, float] = (0.0, 1.0),
) -> pd.DataFrame:
    """`n_prompts` prompts, the families in turn, so that their counts differ by at most one.

    `difficulty` is the range each prompt's own difficulty is drawn from: 0 is short and plain, 1
    long, with distractors and several edits. A prompt depends only on `seed`, `difficulty`, its
    family and how many of that family came before: fewer prompts are a prefix of more.

    Returns:
        DataFrame: prompt_id, family, copy_heavy (bool), difficulty (float), seed (int), source
        ("copy_diversity"), turns (list[str]; the model answers between two turns).

    Raises:
        SwitchSDError: no prompts asked for, an unknown family, or a difficulty outside 0..1.
    """
    names = list(FAMILIES) if families is None else list(dict.fromkeys(families))
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise SwitchSDError(
            f"unknown template family {', '.join(unknown) or '(none given)'}; "
            f"use {', '.join(FAMILIES)}"
        )
    low, high = difficulty
    if not 0 <= low <= high <= 1:
        raise SwitchSDError(f"difficulty {difficulty} must be a range (low, high) within 0..1")
    if n_prompts < 1:
        raise SwitchSDError(f"n_prompts is {n_prompts}; ask for at least 1 prompt")
    rows = [
        _prompt(FAMILIES[name], turn, seed, low, high)
        for name, turn in _rota(names, n_prompts, seed)
    ]
    return pd.DataFrame(rows)


def _rota(names: list[str], n_prompts: int, seed: int) -> list[tuple[str, int]]:
    """(family, round) for each prompt: every round has each family once, in a new order."""
    rota: list[tuple[str, int]] = []
    turn = 0
    while len(rota) < n_prompts:
        # sorted: the order of a round must not depend on how the caller listed the families
        order = random.Random(f"copy_diversity rota {seed} {turn}").sample(
            sorted(names), len(names)
        )
        rota += [(name, turn) for name in order]
        turn += 1
    return rota[:n_prompts]


def _prompt(family: Family, turn: int, seed: int, low: float, high: float) -> dict[str, object]:
    # a string seed hashes alike in every process and version, unlike a tuple's hash
    rng = random.Random(f"copy_diversity {seed} {family.name} {turn}")
    difficulty = low + (high - low) * rng.random()
    wording = rng.choice(family.wordings)
    return {
        "prompt_id": f"copy_diversity/{seed}/{family.name}/{turn:03d}",
        "family": family.name,
        "copy_heavy": family.copy_heavy,
        "difficulty": difficulty,
        "seed": seed,
        "source": "copy_diversity",
        "turns": family.build(rng, difficulty, wording),
    }
