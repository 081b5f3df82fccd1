"""What is trained on what: the settings of a training run, and its texts in two parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...errors import SwitchSDError
from ...probing.activations.capture import capture, planned_store_bytes
from ...probing.activations.store import ids_digest, open_store
from ...probing.lens import Lens
from ...progress import Progress
from ...runs import Run
from ..drafters.draft_card import read_card
from ..shipped import weights_digest
from .artefact import write_artefact
from .distill import check_own
from .features import TextFeatures
from .kinds import Kind
from .loop import Schedule, train
from .texts import hold_out, read_texts, shared_groups

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


_PARTS = {"1-8": 1 / 8, "1-4": 1 / 4, "1-2": 1 / 2}

Say = Callable[[str], None]
"""Takes a line for the user."""


def train_draft(
    lens: Lens, plan: Plan, path: Path, out: Path | None, *, progress: Progress, say: Say
) -> Run:
    """Train a draft and write it to `out` (the run's `draft` folder if None).

    Raises:
        SwitchSDError: bad texts or settings, a folder that holds something else.
    """
    command = f"draft train {plan.kind.name}"
    _check_folders(path, out, command)
    plan.kind.check(lens)
    split = read_split(lens, plan)
    run = _start(lens, plan, split, path, command, say)
    say(
        f"{len(split.train)} texts with {split.tokens(split.train):,} tokens to train on, "
        f"{len(split.checked)} held-out greedy ones to check on"
    )
    features = plan.features or run.path / "features"
    data = _capture(run, lens, plan, split, features, progress, say)
    torch.manual_seed(plan.schedule.seed)
    task = plan.kind.task(lens, data, split.train)
    if plan.start_from is not None:
        plan.kind.start_from(task, plan.start_from, lens)
    history = train(
        task, data.lengths, split.train, split.checked, plan.schedule, run.path / "state",
        progress=progress, say=say,
    )  # fmt: skip
    run.write_table("history", _flat(history))
    figures: dict[str, Any] = {
        "kind": plan.kind.name,
        "texts": len(split.train),
        "tokens": split.tokens(split.train),
        "steps": history[-1]["step"],
        "tokens_seen": history[-1]["tokens"],
        "training_seconds": history[-1]["seconds"],
        "held_out_texts": len(split.checked),
        "parameters": sum(weight.numel() for weight in task.model.parameters()),
    }
    if plan.learning_curve:
        parts = _curve(run, lens, plan, split, data, progress, say)
        figures["learning_curve"] = [*parts, _point(split, split.train, history)]
    run.update_metrics(**figures)
    folder = out or run.path / "draft"
    write_artefact(run, lens, plan.kind, task, split.checked, folder, _about(plan, run, lens))
    run.finish()
    if plan.features is None:
        say(f"the features in {features} are needed no more: delete them to free the space")
    return run


def _check_folders(path: Path, out: Path | None, command: str) -> None:
    Run.check(path)
    run = Run(path)
    if run.exists() and run.manifest().get("command") != command:
        raise SwitchSDError(
            f"{path} holds a run of `{run.manifest().get('command')}`: choose another folder with "
            "--run"
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SwitchSDError(f"{out} is not empty: choose another folder for the draft")


def _start(lens: Lens, plan: Plan, split: Split, path: Path, command: str, say: Say) -> Run:
    config = {
        "model": lens.name,
        "fingerprint": lens.fingerprint,
        "dtype": lens.dtype,
        "texts": ids_digest([*split.texts["prompt_ids"], *split.texts["completion_ids"]]),
        "recipe": asdict(plan.kind.recipe),
        "schedule": asdict(plan.schedule),
        "held_out": plan.held_out,
        "start_from": None if plan.start_from is None else weights_digest(plan.start_from),
        "store_dtype": plan.store_dtype,
    }
    before = Run(path).manifest() if Run(path).exists() else {}
    run = Run.start(path, command=command, config=config)
    if before.get("state") == "running":
        same = before.get("config") == run.manifest()["config"]
        say(
            f"going on with the unfinished run in {path}" if same else
            f"the unfinished run in {path} has other settings, texts or model: it was moved aside, "
            "and a new one begins"
        )  # fmt: skip
    return run


def _capture(
    run: Run,
    lens: Lens,
    plan: Plan,
    split: Split,
    folder: Path,
    progress: Progress,
    say: Say,
) -> TextFeatures:
    """The streams, in `folder`, or where there are several files in one folder for each."""
    sites, start, stores = plan.kind.sites(lens), 0, []
    for file, count in zip(plan.texts, split.files, strict=True):
        texts = split.texts.iloc[start : start + count].reset_index(drop=True)
        own = folder / file.stem if len(split.files) > 1 else folder
        there = (own / "manifest.json").is_file() and open_store(own, partial=True).complete
        if not there:
            needed = planned_store_bytes(lens, texts, sites, plan.store_dtype, whole=True)
            say(f"the target's streams on the texts take {needed / 1e9:.2f} GB in {own}")
        began = time.monotonic()
        try:
            store = capture(
                lens, texts, sites, own, store_dtype=plan.store_dtype, whole=True,
                progress=progress,
            )  # fmt: skip
        finally:
            if not there:
                spent = run.metrics().get("capture_seconds", 0.0) + time.monotonic() - began
                run.update_metrics(capture_seconds=spent)
        stores.append(store)
        start += count
    return TextFeatures(split.texts, stores, lens.device)


def _curve(
    run: Run,
    lens: Lens,
    plan: Plan,
    split: Split,
    data: TextFeatures,
    progress: Progress,
    say: Say,
) -> list[dict[str, Any]]:
    """What parts of the texts give after as many passes: texts, tokens, mean accepted."""
    order = np.random.default_rng(plan.schedule.seed).permutation(split.train)
    found = []
    for name, share in _PARTS.items():
        rows = sorted(order[: max(1, round(share * len(order)))].tolist())
        say(f"learning curve: {len(rows)} texts")
        schedule = replace(
            plan.schedule,
            warmup=max(1, round(share * plan.schedule.warmup)),
            check_every=max(1, round(share * plan.schedule.check_every)),
        )
        torch.manual_seed(plan.schedule.seed)
        history = train(
            plan.kind.task(lens, data, rows), data.lengths, rows, split.checked, schedule,
            run.path / f"state-{name}", progress=progress, say=say,
        )  # fmt: skip
        found.append(_point(split, rows, history))
    return found


def _point(split: Split, rows: list[int], history: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "texts": len(rows),
        "tokens": split.tokens(rows),
        "mean_accepted": max(row["accepted"] for row in history),
        "seconds": history[-1]["seconds"],
    }


def _about(plan: Plan, run: Run, lens: Lens) -> dict[str, Any]:
    """What the card says beside the figures."""
    manifest = run.manifest()
    return {
        "files": [file.name for file in plan.texts],
        "start_from": None if plan.start_from is None else read_card(plan.start_from),
        "recipe": asdict(plan.kind.recipe),
        "schedule": asdict(plan.schedule),
        "dtype": lens.dtype,
        "cores": torch.get_num_threads() if lens.device.type == "cpu" else None,
        "device": lens.device.type,
        "versions": manifest["versions"],
        "licence": plan.licence
        or f"Made from {lens.name} and its completions of the prompts: the terms of both hold.",
    }


def _flat(history: list[dict[str, Any]]) -> pd.DataFrame:
    """One row a check; accepted_1, accepted_2, … are the shares of the first so many guesses."""
    rows = []
    for row in history:
        shares = row["accepted_per_position"]
        plain = {key: value for key, value in row.items() if key != "accepted_per_position"}
        rows.append(plain | {f"accepted_{n}": share for n, share in enumerate(shares, start=1)})
    return pd.DataFrame(rows)
