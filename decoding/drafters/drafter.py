"""Drafters: what proposes tokens for the target to verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..step.tree import DraftTree
from ..step.tree_shape import TreeShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..step.sampling import Sampling


class Drafter:
    """A neural drafter. Only `propose` has to be written; everything else has a default.

    The engine calls `reset` at a new prompt, `absorb` with the streams of every newly processed
    token, in order, and `propose` when the gate chose the neural path. What a drafter keeps between
    calls depends on committed tokens only.

    Attributes:
        sites: hook points of the target it reads.
        depth: how deep its drafts are at most.
        kind: what traces, profiles and fits know it by: eagle3, sps, a tree's name; None: none of
            them can hold it.
        digest: of the files it was read from; None where it was read from none.
        tree: the shape it drafts; None: a chain, or no fixed one.
        n_ctx: tokens of the longest text it can draft in; None: the target's.
    """

    sites: tuple[str, ...] = ()
    depth: int = 0
    kind: str | None = None
    digest: str | None = None
    tree: TreeShape | None = None
    n_ctx: int | None = None

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
        raise NotImplementedError
