"""Drafters: what proposes tokens for the target to verify."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..step.sampling import Sampling
from ..step.tree import DraftTree


class Drafter(Protocol):
    """A neural drafter.

    The engine calls `reset` at a new prompt, `absorb` with the streams of every newly processed
    token, in order, and `propose` when the gate chose the neural path. What a drafter keeps between
    calls depends on committed tokens only.
    """

    sites: tuple[str, ...]
    """Hook points of the target it reads."""

    @property
    def depth(self) -> int:
        """How deep its drafts are at most."""

    def follow(self, sampling: Sampling) -> None:
        """Take the target's settings, called before `reset`; one built with its own keeps those."""

    def reset(self) -> None:
        """Forget the last prompt."""

    def absorb(self, streams: dict[str, Tensor]) -> None:
        """Take the streams ([token, width]) of the tokens the target has just processed."""

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """Draft at most `limit` tokens deep after the committed ones.

        `generator` is None under greedy decoding; otherwise a drafter that samples draws from it.
        """
