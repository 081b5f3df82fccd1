"""What is trained on what: the settings of a training run, and its texts in two parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..decoding.training.distill import check_own
from ..decoding.training.loop import Schedule
from ..decoding.training.texts import hold_out, read_texts, shared_groups
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
        texts: Parquet files: the target's own completions, then more of them or gathered texts.
            Only the first are held out from, and checked on.
        schedule: how long and how fast.
        held_out: share of the texts that is never trained on.
        store_dtype: of the features on disk.
        features: their folder; None: in the run's.
        learning_curve: train on an eighth, a quarter and a half of the texts as well.
        licence: what the model card says of it.
        start_from: a draft of the same kind whose weights it starts from.
    """

    kind: Kind
    texts: tuple[Path, ...]
    schedule: Schedule
    held_out: float = 0.04
    store_dtype: str = "bfloat16"
    features: Path | None = None
    learning_curve: bool = False
    licence: str = ""
    start_from: Path | None = None

    def __post_init__(self) -> None:
        schedule = self.schedule
        wrong = [
            f"{name} has to be above 0, got {getattr(schedule, name):g}"
            for name in ("passes", "batch_tokens", "lr", "check_every", "patience")
            if not getattr(schedule, name) > 0
        ]
        if not 0 < self.held_out < 1:
            wrong.append(f"held_out has to lie between 0 and 1, got {self.held_out:g}")
        names = [file.stem for file in self.texts]
        if len(set(names)) < len(names):
            wrong.append(f"two files of texts have one name: {', '.join(sorted(names))}")
        if self.store_dtype not in ("bfloat16", "float16", "float32"):
            wrong.append(f"unknown store dtype {self.store_dtype!r}: bfloat16, float16 or float32")
        if wrong:
            raise SwitchSDError("; ".join(wrong))


@dataclass(frozen=True)
class Split:
    """The texts, which of them are trained on, and which the checks read.

    Attributes:
        texts: of all files, one after the other.
        files: how many texts each file has.
        train: rows trained on.
        checked: rows the checks read.
    """

    texts: pd.DataFrame
    files: tuple[int, ...]
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
    files, seed = [read_texts(file, lens.d_vocab) for file in plan.texts], plan.schedule.seed
    texts = pd.concat(files, ignore_index=True)
    longest = int((texts["prompt_ids"].map(len) + texts["completion_ids"].map(len)).max())
    if longest > lens.n_ctx:
        raise SwitchSDError(
            f"the texts hold one of {longest} tokens; the context of {lens.name} is "
            f"{lens.n_ctx}: these are another model's completions"
        )
    rows, held = hold_out(files[0], plan.held_out, seed)
    if len(files) > 1:  # of the others, what shares a passage with a held-out text is left out
        groups = shared_groups(list(texts["prompt_ids"]))
        others = np.arange(len(files[0]), len(texts))
        rows += others[~np.isin(groups[others], groups[held])].tolist()
    greedy = [row for row in held if texts["temperature"].iat[row] == 0]
    if not greedy:
        raise SwitchSDError(
            f"none of the {len(held)} held-out texts is a greedy completion (temperature 0), which "
            "the checks compare drafts with: hold more out, or distill some greedily"
        )
    checked = sorted(np.random.default_rng(seed).permutation(greedy)[:CHECKED].tolist())
    check_own(lens, texts, checked[:8])
    return Split(texts, tuple(map(len, files)), rows, checked)
