"""The parts of a step, each run as the decode loop runs it, to be timed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...decoding.drafters.copy import RecentCopier
from ...decoding.drafters.drafter import Drafter
from ...decoding.engine import generate
from ...decoding.gates.gate import Observation, ProbeGate
from ...decoding.policies import Options
from ...decoding.step.clock import now
from ...decoding.step.tree import DraftTree
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens

START = 64
"""Tokens of the text that a drafter has seen before it is timed."""


@dataclass
class Point:
    """One thing to be timed; `run` gives the seconds it took."""

    name: str
    place: tuple[int, int]
    run: Callable[[], float]
    seconds: list[float] = field(default_factory=list)


def verification_points(
    lens: Lens, sites: list[str], tokens: list[int], contexts: list[int], seed: int
) -> list[Point]:
    """A step's forward over a chain, as the decode loop makes it, for every point."""
    ids = _text(lens, max(contexts) + max(tokens), seed)
    points = []
    for column, context in enumerate(contexts):
        kv = lens.new_kv()
        lens.forward(torch.tensor([ids[:context]], device=lens.device), kv=kv, logits="none")

        def run(count: int, kv: Any = kv, context: int = context) -> float:
            tree = DraftTree.chain(ids[context + 1 : context + count])
            begin = now(lens.device)
            row = torch.tensor([ids[context : context + count]], device=lens.device)
            attend = positions = None
            if count > 1:
                mask = np.ones((1, count, context + count), dtype=bool)
                mask[0, :, context:] = tree.attend
                attend = torch.from_numpy(mask).to(lens.device)
                positions = torch.from_numpy(context + tree.depths)[None].to(lens.device)
            lens.forward(row, sites=sites, attend=attend, positions=positions, kv=kv)
            seconds = now(lens.device) - begin
            kv.rollback(context)
            return seconds

        points += [
            Point("verify", (place, column), lambda count=count, run=run: run(count))  # type: ignore[misc]
            for place, count in enumerate(tokens)
        ]
    return points


def draft_points(
    lens: Lens, kind: str, drafter: Drafter, gammas: list[int], pending: list[int], seed: int
) -> list[Point]:
    """A draft of every depth after so many tokens were committed since the last one."""
    ids = _text(lens, START + max(pending) + 1, seed)
    out = lens.forward(
        torch.tensor([ids], device=lens.device), sites=list(drafter.sites), logits="none"
    )
    streams = {site: stream[0] for site, stream in out.streams.items()}

    def take_in(first: int, last: int) -> None:
        drafter.absorb({site: streams[site][first:last] for site in drafter.sites})

    def run(gamma: int, count: int) -> float:
        drafter.reset()
        take_in(0, START - 1)
        drafter.propose(ids[:START], 1, None)
        take_in(START - 1, START + count - 1)
        begin = now(lens.device)
        drafter.propose(ids[: START + count], gamma, None)
        return now(lens.device) - begin

    return [
        Point(kind, (row, column), lambda gamma=gamma, count=count: run(gamma, count))  # type: ignore[misc]
        for row, gamma in enumerate(gammas)
        for column, count in enumerate(pending)
    ]


def small_parts(lens: Lens, probe: CopyProbe | None, seed: int) -> dict[str, float]:
    """Medians in ms of lookup, gate and what the loop does around its forward."""
    rng = random.Random(seed)
    block = [rng.randrange(lens.d_vocab) for _ in range(40)]
    ids: list[int] = []
    while len(ids) < 600:  # repeats of parts of one block: lookups hit, as in text that copies
        start = rng.randrange(30)
        ids += block[start : start + rng.randrange(4, 12)]
    copier, lookups = RecentCopier(4, 10, 3), []
    copier.look(ids[:200])
    for place in range(201, 600):
        begin = time.perf_counter()
        copier.look(ids[:place])
        lookups.append(time.perf_counter() - begin)
    found = {"lookup": 1e3 * float(np.median(lookups))}
    if probe is not None:
        gate, rows = ProbeGate(probe.tau), torch.randn(4, len(probe.weight), device=lens.device)
        taken = []
        for _ in range(200):
            begin = now(lens.device)
            score = probe.score(rows).tolist()[-1]
            gate.decide(Observation(100, True, 3, score))
            taken.append(now(lens.device) - begin)
        found["gate"] = 1e3 * float(np.median(taken))
    prompt = ids[: min(200, lens.n_ctx // 2)]
    budget = min(64, lens.n_ctx - len(prompt) - 1)
    trace = generate(
        lens, prompt, "copyspec", options=Options(), max_new_tokens=budget, eos_ids=()
    ).trace
    found["overhead"] = float(np.median([step.overhead_ms for step in trace.steps]))
    return found


def _text(lens: Lens, length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, lens.d_vocab, (length,), generator=generator).tolist()
