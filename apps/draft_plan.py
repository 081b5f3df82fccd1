"""What is trained on what: the settings of a training run, and its texts in two parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..decoding.training.distill import check_own
from ..decoding.training.loop import Schedule
from ..decoding.training.texts import hold_out, read_texts
from ..errors import SwitchSDError
from ..probing.lens import Lens
from .draft_kinds import Kind

CHECKED = 128
"""Most held-out texts that a check reads."""


@dataclass(frozen=True)
class Plan:
    """What is trained on what.

    Attributes:
        kind: of draft, with its recipe.
        texts: Parquet of the target's own completions.
        schedule: how long and how fast.
        held_out: share of the texts that is never trained on.
        store_dtype: of the features on disk.
        features: their folder; None: in the run's.
        learning_curve: train on an eighth, a quarter and a half of the texts as well.
        licence: what the model card says of it.
    """

    kind: Kind
    texts: Path
    schedule: Schedule
    held_out: float = 0.04
    store_dtype: str = "bfloat16"
    features: Path | None = None
    learning_curve: bool = False
    licence: str = ""

    def __post_init__(self) -> None:
        schedule = self.schedule
        wrong = [
            f"{name} has to be above 0, got {getattr(schedule, name):g}"
            for name in ("passes", "batch_tokens", "lr", "check_every", "patience")
            if not getattr(schedule, name) > 0
        ]
        if not 0 < self.held_out < 1:
            wrong.append(f"held_out has to lie between 0 and 1, got {self.held_out:g}")
        if self.store_dtype not in ("bfloat16", "float16", "float32"):
            wrong.append(f"unknown store dtype {self.store_dtype!r}: bfloat16, float16 or float32")
        if wrong:
            raise SwitchSDError("; ".join(wrong))


@dataclass(frozen=True)
class Split:
    """The texts, which of them are trained on, and which the checks read."""

    texts: pd.DataFrame
    train: list[int]
    checked: list[int]

    def tokens(self, rows: list[int]) -> int:
        """Tokens of some texts, prompts included."""
        part = self.texts.loc[rows]
        return int(part["prompt_ids"].map(len).sum() + part["completion_ids"].map(len).sum())


def read_split(lens: Lens, plan: Plan) -> Split:
    """The plan's texts, split; checks are on greedy completions, which drafting is compared with.

    Raises:
        SwitchSDError: no such file, too few texts, none greedy, or another model's.
    """
    texts, seed = read_texts(plan.texts, lens.d_vocab), plan.schedule.seed
    longest = int((texts["prompt_ids"].map(len) + texts["completion_ids"].map(len)).max())
    if longest > lens.n_ctx:
        raise SwitchSDError(
            f"{plan.texts} holds a text of {longest} tokens; the context of {lens.name} is "
            f"{lens.n_ctx}: these are another model's completions"
        )
    rows, held = hold_out(texts, plan.held_out, seed)
    greedy = [row for row in held if texts["temperature"].iat[row] == 0]
    if not greedy:
        raise SwitchSDError(
            f"none of the {len(held)} held-out texts is a greedy completion (temperature 0), which "
            "the checks compare drafts with: hold more out, or distill some greedily"
        )
    checked = sorted(np.random.default_rng(seed).permutation(greedy)[:CHECKED].tolist())
    check_own(lens, texts, checked[:8])
    return Split(texts, rows, checked)
