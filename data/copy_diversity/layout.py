"""How a CopyDiversity prompt is put together: the family record, and instruction with payload."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

Build = Callable[[random.Random, float, str], list[str]]
"""(rng, difficulty, wording) → the user's turns."""


@dataclass(frozen=True)
class Family:
    """One template family: what it asks for, in how many wordings, and what it is filled with."""

    name: str
    copy_heavy: bool
    wordings: tuple[str, ...]
    build: Build


def copies(*wordings: str) -> Callable[[Build], Family]:
    """A family whose answers copy; the function it decorates fills it, and names it."""
    return lambda build: Family(build.__name__.removeprefix("_"), True, wordings, build)


def repeats(*wordings: str) -> Callable[[Build], Family]:
    """As `copies`, for a family in which repetition is accidental."""
    return lambda build: Family(build.__name__.removeprefix("_"), False, wordings, build)


def scaled(difficulty: float, easy: float, hard: float) -> int:
    """The whole number `difficulty` of the way from `easy` to `hard`."""
    return round(easy + (hard - easy) * difficulty)


def jittered(rng: random.Random, difficulty: float, easy: float, hard: float) -> int:
    """As `scaled`, one fifth more or less."""
    return max(round((easy + (hard - easy) * difficulty) * rng.uniform(0.8, 1.2)), 1)


def lay_out(
    rng: random.Random, instruction: str, payload: str, *, kind: str = "text", fence: str = ""
) -> str:
    """One user turn: the instruction before or after the payload, fenced, labelled or bare.

    `kind` is what the payload is called ("text", "code", …), `fence` the language of its fence.
    """
    instruction_first = rng.random() < 0.6
    block = payload.strip("\n")
    style = rng.random()
    if style < (0.6 if fence else 0.2):
        block = f"```{fence if rng.random() < 0.7 else ''}\n{block}\n```"
    elif style < 0.75 and not instruction_first:
        heading = rng.choice((f"{kind.capitalize()}:", f"Here is the {kind}:", f"The {kind}:"))
        block = f"{heading}\n{block}"
    elif style < 0.75:
        block = f"{kind.capitalize()}:\n{block}"
    elif style < 0.85:
        block = f'"""\n{block}\n"""'
    gap = "\n\n" if rng.random() < 0.7 else "\n"
    return gap.join([instruction, block] if instruction_first else [block, instruction])
