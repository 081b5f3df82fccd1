"""Is decoding lossless? Greedy text against transformers', sampled text against enumeration, and KV
walks against fresh forwards.

`switchsd exactness` runs this on any model; the test suite runs a slice and, exhaustively, all.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ...probing.lens import Lens
from ...probing.loading import wrap
from ...progress import Progress, silent
from ...runs import read_parquet, write_parquet
from ..drafters.drafter import Drafter
from ..engine import generate
from ..gates.gate import Outcome
from ..policies import Policy
from ..step.sampling import Processor, Sampling
from ..step.tree import DraftTree
from ..step.verify import verify_sampled
from .reference import reference_ids


def noisy_copy(lens: Lens, *, noise: float = 0.02, seed: int = 0) -> Lens:
    """The target with a little noise on its weights: a draft that is often right and not always.

    It stands in where no draft model is at hand; it drafts as slowly as the target decodes.
    """
    model = copy.deepcopy(lens.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            weight += noise * weight.std() * drawn
    return wrap(model, lens.tokenizer, name=f"{lens.name} with noise", device=str(lens.device))


def greedy_rows(
    lens: Lens,
    prompts: Mapping[str, Sequence[int]],
    policies: Mapping[str, Policy],
    folder: Path,
    *,
    max_new_tokens: int,
    backwards: bool = False,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Compare every policy's greedy text with transformers' own, token for token.

    Args:
        lens: the target, in float32.
        prompts: name → ids.
        policies: label → policy.
        folder: each prompt's rows are kept here; a later call goes on.
        max_new_tokens: budget.
        backwards: begin at the last prompt, as a second process does that meets the first.
        progress: told the number of prompts.

    Returns:
        prompt_id, policy, tokens, mismatches (positions that differ, and missing or extra ones),
        multi_accepts (steps with more than one accepted token), rejections (steps with a draft
        accepted in part), steps.
    """
    parts = []
    numbered = list(enumerate(prompts.items()))
    for done, (number, (prompt_id, prompt)) in enumerate(numbered[:: -1 if backwards else 1]):
        progress("greedy", done, len(prompts))
        file = folder / f"{number:04d}.parquet"
        kept = read_parquet(file) if file.is_file() else pd.DataFrame({"policy": []})
        missing = {n: p for n, p in policies.items() if n not in set(kept["policy"])}
        if missing:
            truth = reference_ids(lens, prompt, max_new_tokens)
            new = [
                _greedy_row(lens, prompt_id, prompt, name, policy, truth, max_new_tokens)
                for name, policy in missing.items()
            ]
            kept = pd.concat([kept, pd.DataFrame(new)], ignore_index=True)
            write_parquet(file, kept)
        parts.append(kept[kept["policy"].isin(list(policies))])
    progress("greedy", len(prompts), len(prompts))
    return pd.concat(parts, ignore_index=True)


def greedy_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sum `greedy_rows` by policy."""
    sums = rows.groupby("policy", sort=False)[
        ["tokens", "mismatches", "multi_accepts", "rejections", "steps"]
    ].sum()
    sums.insert(0, "prompts", rows.groupby("policy", sort=False)["prompt_id"].nunique())
    return sums.astype(int).reset_index()


def _greedy_row(
    lens: Lens,
    prompt_id: str,
    prompt: Sequence[int],
    name: str,
    policy: Policy,
    truth: list[int],
    max_new_tokens: int,
) -> dict[str, Any]:
    result = generate(lens, prompt, policy, max_new_tokens=max_new_tokens)
    pairs = itertools.zip_longest(result.ids, truth)
    steps = result.trace.steps
    return {
        "prompt_id": prompt_id,
        "policy": name,
        "tokens": len(truth),
        "mismatches": sum(a != b for a, b in pairs),
        "multi_accepts": sum(s.accepted > 1 for s in steps),
        "rejections": sum(0 < s.accepted < s.proposed for s in steps),
        "steps": len(steps),
    }


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


def kv_walk_errors(
    lens: Lens, walks: int, *, seed: int = 0, steps: int = 6, progress: Progress = silent
) -> Iterator[float]:
    """Random trees, accepted paths and rollbacks: largest logit error of each walk.

    Errors are relative to the largest logit of a fresh, uncached forward over the same tokens.
    """
    rng = random.Random(seed)
    vocabulary = min(lens.d_vocab, 1000)
    for walk in range(walks):
        progress(f"KV {lens.name}", walk, walks)
        kv = lens.new_kv()
        committed = [rng.randrange(vocabulary) for _ in range(rng.randrange(2, 24))]
        lens.forward(torch.tensor([committed[:-1]]), kv=kv)
        worst = 0.0
        for _ in range(rng.randrange(2, steps + 1)):
            base = len(committed) - 1
            tree = DraftTree.merge(
                [
                    [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
                    for _ in range(rng.randrange(1, 5))
                ]
            )
            logits = _tree_logits(lens, kv, committed, tree)
            node, path = rng.randrange(-1, len(tree)), list[int]()
            while node >= 0:
                path.insert(0, node)
                node = tree.parents[node]
            committed += [tree.tokens[i] for i in path]
            slots = [0, *(i + 1 for i in path)]
            worst = max(worst, _error(lens, committed, logits[slots[-1]]))
            kv.commit(base, slots)
            if rng.random() < 0.3 and kv.length > 2:  # forget some of it again
                keep = rng.randrange(1, kv.length)
                kv.rollback(keep)
                committed = committed[:keep]
            committed.append(rng.randrange(vocabulary))
        yield worst
    progress(f"KV {lens.name}", walks, walks)


def _tree_logits(lens: Lens, kv: Any, committed: list[int], tree: DraftTree) -> Tensor:
    base, slots = len(committed) - 1, len(tree) + 1
    attend = torch.ones(1, slots, base + slots, dtype=torch.bool)
    attend[0, :, base:] = torch.from_numpy(tree.attend)
    out = lens.forward(
        torch.tensor([[committed[-1], *tree.tokens]]),
        attend=attend,
        positions=torch.from_numpy(base + tree.depths)[None],
        kv=kv,
    )
    assert out.logits is not None
    return out.logits[0]


def _error(lens: Lens, ids: list[int], logits: Tensor) -> float:
    fresh = lens.forward(torch.tensor([ids]), logits="last").logits
    assert fresh is not None
    return float((logits - fresh[0, -1]).abs().max() / fresh.abs().max())
