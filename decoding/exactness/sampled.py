"""Is sampling lossless? Sampled texts of a tiny model against its enumerated distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...probing.lens import Lens
from ..drafters.drafter import Drafter
from ..engine import generate
from ..gates.gate import Outcome
from ..policies import Policy
from ..step.sampling import Processor, Sampling
from ..step.tree import DraftTree
from ..step.verify import verify_sampled


@dataclass(frozen=True)
class Enumerated:
    """A target's exact distribution over the next tokens.

    Attributes:
        prompt: the prompt's ids.
        length: tokens enumerated.
        table: path of up to length − 1 tokens → probabilities of the next.
    """

    prompt: tuple[int, ...]
    length: int
    table: dict[tuple[int, ...], Tensor]

    @classmethod
    def of(cls, lens: Lens, prompt: Sequence[int], length: int, sampling: Sampling) -> Enumerated:
        """Run a tiny model on every path, with the sampling settings applied to each."""
        processor = Processor(sampling, len(prompt), ())
        table: dict[tuple[int, ...], Tensor] = {}
        for depth in range(length):
            for path in itertools.product(range(lens.d_vocab), repeat=depth):
                ids = torch.tensor([[*prompt, *path]], device=lens.device)
                logits = lens.forward(ids, logits="last").logits
                assert logits is not None
                table[path] = processor.probabilities(logits[0, -1], prompt, path).cpu()
        return cls(tuple(prompt), length, table)

    def probabilities(self) -> dict[tuple[int, ...], float]:
        """Probability of every text of `length` tokens."""
        vocabulary = range(len(next(iter(self.table.values()))))
        out = {}
        for text in itertools.product(vocabulary, repeat=self.length):
            p = 1.0
            for depth, token in enumerate(text):
                p *= float(self.table[text[:depth]][token])
            out[text] = p
        return out


@dataclass(frozen=True)
class Distance:
    """Total variation of samples to the target, beside that of as many direct draws.

    Attributes:
        samples: how many.
        tv: of the policy's samples.
        tv_expected: mean over sets of as many direct draws.
        tv_limit: the largest of 20 such sets plus twice their standard deviation.
    """

    samples: int
    tv: float
    tv_expected: float
    tv_limit: float

    @property
    def fine(self) -> bool:
        """Whether the policy's distance is one that direct draws have too."""
        return self.tv <= self.tv_limit


def distance(
    counts: Counter[tuple[int, ...]], target: Enumerated, *, seed: int = 0, sets: int = 20
) -> Distance:
    """Compare counted texts with the enumerated distribution.

    The limit is the largest distance of `sets` sets of direct draws plus twice their standard
    deviation: a correct sampler stays below it all but about once in a thousand times.
    """
    exact = target.probabilities()
    p = np.array(list(exact.values()))
    n = sum(counts.values())
    share = np.array([counts.get(text, 0) for text in exact]) / n
    rng = np.random.default_rng(seed)
    direct = rng.multinomial(n, p / p.sum(), size=sets) / n
    spread = np.abs(direct - p).sum(axis=1) / 2
    return Distance(
        samples=n,
        tv=float(np.abs(share - p).sum() / 2),
        tv_expected=float(spread.mean()),
        tv_limit=float(spread.max() + 2 * spread.std()),
    )


def sample_verification(
    policy: Policy, target: Enumerated, n: int, *, seed: int = 0
) -> Counter[tuple[int, ...]]:
    """Sample texts through gate, drafters and verification, with the target's enumerated rows.

    The policy's neural drafter must not read streams of the target.
    """
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(n):
        policy.reset()
        new: list[int] = []
        while len(new) < target.length:
            draft = policy.draft(
                [*target.prompt, *new],
                score=1.0,
                limit=target.length - len(new) - 1,
                generator=generator,
            )
            rows = partial(_row_after, target.table, tuple(new))
            accepted = verify_sampled(draft.tree, rows, generator)
            outcome = Outcome(draft.path, len(accepted.tokens), len(accepted.emitted), 1.0)
            policy.gate.observe(outcome)
            new += accepted.emitted
        counts[tuple(new)] += 1
    return counts


def sample_engine(
    lens: Lens, policy: Policy, target: Enumerated, n: int, sampling: Sampling, *, seed: int = 0
) -> Counter[tuple[int, ...]]:
    """Sample texts through the whole engine."""
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(n):
        settings = Sampling(**{**vars(sampling), "seed": seed * 1_000_003 + number})
        result = generate(
            lens, target.prompt, policy, max_new_tokens=target.length, sampling=settings, eos_ids=()
        )
        counts[tuple(result.ids)] += 1
    return counts


def _row_after(
    table: dict[tuple[int, ...], Tensor], new: tuple[int, ...], slot: int, path: Sequence[int]
) -> Tensor:
    return table[(*new, *path)]


class TableDrafter(Drafter):
    """Samples a chain from fixed distributions that have nothing to do with the target's: q ≠ p.

    Args:
        q: [depth, d_vocab], the distribution at each depth.
    """

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.depth = len(q)

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """A chain as deep as the table; greedy: its likeliest tokens."""
        q = self.q[: max(limit, 0)]
        if not len(q):
            return DraftTree()
        if generator is None:
            return DraftTree.chain(q.argmax(-1).tolist())
        tokens = torch.multinomial(q, 1, generator=generator)[:, 0].tolist()
        return DraftTree.chain(tokens, q=q)
