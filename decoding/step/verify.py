"""Accept a path through a draft tree, greedily or by sampling, exactly.

The words of a step, used everywhere: the **anchor** is the last committed token; the target has
chosen it but not processed it yet, so it goes through the target together with the draft. Draft
tokens that stay are **accepted**. The **bonus** is the token the target itself adds behind them.
What a step adds to the text is **emitted**: the accepted tokens and the bonus. "Accepted" never
counts the bonus. With `the cat sat on the` committed, `the` is the anchor; of the draft `mat and
slept` the target agrees with `mat and` and then says `purred`: 2 accepted, 1 bonus, 3 emitted, and
`purred` is the next anchor.

Greedy: the path the target's argmax takes. Sampled, deterministic draft: one draw from the target a
node; descend where the draw is a child, otherwise emit it and stop. Sampled, draft with a
distribution q of its own: accept a child with min(1, p/q), else go on with the residual
max(p − q, 0), renormalised (Leviathan et al. 2023; several children one after the other as in
SpecInfer, Miao et al. 2024). A tree may hold both: at each node the drawn children come first, then
the one draw, from what is left of p, finds a deterministic child or stops. Each emits exactly the
target's distribution; verifying candidates independently and keeping the longest does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .tree import ANCHOR, DraftTree


@dataclass(frozen=True)
class Accepted:
    """Outcome of one verification.

    Attributes:
        nodes: accepted nodes, from the anchor down.
        tokens: their tokens.
        bonus: the token the target adds itself.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    bonus: int

    @property
    def emitted(self) -> tuple[int, ...]:
        """What the step adds to the text."""
        return (*self.tokens, self.bonus)


def verify_greedy(tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Accepted:
    """Follow the target's argmax.

    Args:
        tree: the draft.
        choose: (slot, tokens accepted so far) → the target's token after that slot; slot 0 is the
            anchor, slot i + 1 node i.
    """
    path: list[int] = []
    tokens: list[int] = []
    node = ANCHOR
    while True:
        token = choose(node + 1, tokens)
        child = _child(tree, node, token)
        if child is None:
            return Accepted(tuple(path), tuple(tokens), token)
        path.append(child)
        tokens.append(token)
        node = child


def verify_sampled(
    tree: DraftTree,
    target: Callable[[int, Sequence[int]], Float[Tensor, d_vocab]],
    generator: torch.Generator,
) -> Accepted:
    """Draw a path from the target's distribution.

    Args:
        tree: the draft; siblings with a q are independent draws from it.
        target: (slot, tokens accepted so far) → the target's processed probabilities after it.
        generator: source of randomness (on the CPU).
    """
    path: list[int] = []
    tokens: list[int] = []
    node = ANCHOR
    while True:
        p = target(node + 1, tokens)
        token, child = _descend(tree, node, p, generator)
        if child is None:
            return Accepted(tuple(path), tuple(tokens), token)
        path.append(child)
        tokens.append(token)
        node = child


def draw(p: Float[Tensor, d_vocab], generator: torch.Generator) -> int:
    """One token from p (need not be normalised)."""
    return int(torch.multinomial(p.to("cpu", torch.float64), 1, generator=generator))


def _descend(
    tree: DraftTree, node: int, p: Tensor, generator: torch.Generator
) -> tuple[int, int | None]:
    """The next token, and the child it is, if it is one."""
    p = p.to("cpu", torch.float64)
    sure: dict[int, int] = {}
    for child in tree.children[node + 1]:
        token, drawn = tree.tokens[child], tree.distribution(child)
        if drawn is None:
            sure[token] = child
            continue
        q = drawn.to("cpu", torch.float64)
        if _accepts(p[token], q[token], generator):
            return token, child
        residual = (p - q).clamp_min(0)
        # all zero only where p equals q up to rounding; then p itself is the residual's limit
        p = residual / residual.sum() if residual.sum() > 0 else p
    token = draw(p, generator)
    return token, sure.get(token)


def _accepts(p: Tensor, q: Tensor, generator: torch.Generator) -> bool:
    """True with probability min(1, p/q)."""
    return bool(torch.rand((), generator=generator, dtype=torch.float64) * q < p)


def _child(tree: DraftTree, node: int, token: int) -> int | None:
    return next((c for c in tree.children[node + 1] if tree.tokens[c] == token), None)
