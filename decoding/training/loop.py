"""The training loop: optimiser, schedule, held-out checks, and a state that survives a kill."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...errors import SwitchSDError
from ...progress import Progress, silent
from .texts import token_batches

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Task(Protocol):
    """What is trained."""

    model: nn.Module

    def loss(self, rows: Sequence[int], seed: int) -> Tensor:
        """Of a batch of texts."""

    def evaluate(self, rows: Sequence[int]) -> list[float]:
        """Share of positions where the first 1, 2, … guesses are all right."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Attributes:
        passes: over the training texts.
        batch_tokens: tokens of a batch, padding included.
        lr: peak rate of AdamW; after the warm-up it falls as a cosine to a twentieth.
        warmup: steps.
        weight_decay: of matrices.
        clip: largest norm of a gradient.
        check_every: steps between held-out checks; the state is kept at each.
        patience: checks without a better held-out figure before it stops.
        seed: of the batches.
    """

    passes: float = 4.0
    batch_tokens: int = 2048
    lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    check_every: int = 250
    patience: int = 10
    seed: int = 0


def train(
    task: Task,
    lengths: Sequence[int],
    rows: Sequence[int],
    held_out: Sequence[int],
    schedule: Schedule,
    folder: Path,
    *,
    progress: Progress = silent,
    say: Any = None,
) -> list[dict[str, Any]]:
    """Train `task.model` in place; it ends with the weights that did best on held-out texts.

    Args:
        task: model, loss and check.
        lengths: tokens of each text.
        rows: texts to learn from.
        held_out: texts to check on.
        schedule: how long and how fast.
        folder: the state is kept here; a later call with it goes on where this one stopped.
        progress: told the number of steps.
        say: told a line at every check.

    Returns:
        One row a check: step, tokens, seconds, loss, accepted, accepted_per_position.
    """
    per_pass = len(token_batches(lengths, rows, schedule.batch_tokens, schedule.seed))
    total = max(1, round(schedule.passes * per_pass))
    learned = [p for p in task.model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learned if p.ndim > 1]},
        {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=schedule.lr,
        betas=(0.9, 0.95),
        weight_decay=schedule.weight_decay,
    )
    state = _State(folder, task.model, optimizer)
    step, history = state.load()
    if history and _stale(history) >= schedule.patience:
        step = total  # it had stopped
    seconds = history[-1]["seconds"] if history else 0.0
    tokens = history[-1]["tokens"] if history else 0
    began, running = time.monotonic(), []
    for batch in islice(_batches(lengths, rows, schedule, step), max(0, total - step)):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr * _rate(step, total, schedule.warmup)
        loss = task.loss(batch, seed=step)
        if not math.isfinite(loss.item()):
            raise SwitchSDError(f"the loss is {loss.item()} at step {step}: try a lower lr")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, schedule.clip)
        optimizer.step()
        running.append(loss.item())
        tokens += sum(lengths[row] for row in batch)
        step += 1
        progress("training", step, total)
        if step % schedule.check_every == 0 or step == total:
            shares = task.evaluate(held_out)
            history.append(
                {
                    "step": step,
                    "tokens": tokens,
                    "seconds": seconds + time.monotonic() - began,
                    "loss": sum(running) / len(running),
                    "accepted": sum(shares),
                    "accepted_per_position": shares,
                }
            )
            running = []
            state.save(step, history)
            if say is not None:
                last = history[-1]
                say(
                    f"step {step}/{total}  {last['seconds']:.0f} s  loss {last['loss']:.3f}  "
                    f"accepted {last['accepted']:.3f}  "
                    + " ".join(f"{share:.3f}" for share in shares)
                )
            if _stale(history) >= schedule.patience:
                break
    state.load_best()
    return history


def _batches(
    lengths: Sequence[int], rows: Sequence[int], schedule: Schedule, step: int
) -> Iterator[list[int]]:
    """The batches of pass after pass, from a step on; passes differ by a batch or so."""
    for number in count():
        batches = token_batches(lengths, rows, schedule.batch_tokens, schedule.seed + number)
        yield from batches[step:]
        step = max(0, step - len(batches))


def _rate(step: int, total: int, warmup: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2


def _stale(history: list[dict[str, Any]]) -> int:
    best = max(range(len(history)), key=lambda i: history[i]["accepted"])
    return len(history) - 1 - best


class _State:
    """Weights, optimiser and history in a folder: one file, so that no kill leaves a mixture."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.folder, self.model, self.optimizer = folder, model, optimizer
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, history: list[dict[str, Any]]) -> None:
        weights = {name: w.detach() for name, w in self.model.named_parameters()}
        if _stale(history) == 0:
            self._write("best.safetensors", weights)
        moments = {
            f"{key}/{name}": self.optimizer.state[w][key]
            for name, w in self.model.named_parameters()
            if w in self.optimizer.state
            for key in _MOMENTS
        }
        about = {"step": str(step), "history": json.dumps(history)}
        held = {f"weight/{name}": w for name, w in weights.items()} | moments
        self._write("state.safetensors", held, about)

    def load(self) -> tuple[int, list[dict[str, Any]]]:
        file = self.folder / "state.safetensors"
        if not file.is_file():
            return 0, []
        with safe_open(file, framework="pt") as kept, torch.no_grad():
            about, there = kept.metadata(), set(kept.keys())
            for name, w in self.model.named_parameters():
                w.copy_(kept.get_tensor(f"weight/{name}"))
                if f"step/{name}" in there:
                    self.optimizer.state[w] = {
                        key: kept.get_tensor(f"{key}/{name}").to(
                            w.device if key != "step" else "cpu"
                        )
                        for key in _MOMENTS
                    }
        return int(about["step"]), json.loads(about["history"])

    def load_best(self) -> None:
        best = self.folder / "best.safetensors"
        if best.is_file():
            weights = load_file(best)
            with torch.no_grad():
                for name, w in self.model.named_parameters():
                    w.copy_(weights[name])

    def _write(
        self, name: str, tensors: dict[str, Tensor], about: dict[str, str] | None = None
    ) -> None:
        part = self.folder / f".{name}.part"
        held = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
        try:
            save_file(held, part, about)
            part.replace(self.folder / name)
        except (OSError, SafetensorError) as error:
            raise SwitchSDError(
                f"cannot write {self.folder / name}: {error}; the state of the check before is "
                "kept: free some space and run the same command again"
            ) from error
