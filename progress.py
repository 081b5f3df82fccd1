"""How long work reports where it is: a callback that takes what, how far and how much in all."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""(what is being done, units done, units in all)."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
