"""Counterfactual traces for tests: of tiny models from their own drafters, and made up at random.

The drafters of live decoding are asked at every position, one at a time; slow and plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from switchsd.analysis.cost.profile import LatencyProfile
from switchsd.analysis.cost.surface import Surface
from switchsd.analysis.traces.columns import GAMMA, Text, positions_table
from switchsd.analysis.traces.trace import CounterfactualTrace, positions_file
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.drafters.drafter import Drafter
from switchsd.decoding.eagle3.drafter import Eagle3, TreeShape
from switchsd.decoding.eagle3.head import Eagle3Head
from switchsd.decoding.engine import generate
from switchsd.decoding.step.sampling import Sampling
from switchsd.decoding.step.verify import verify_greedy
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from switchsd.runs import Run, write_parquet

SHAPE = TreeShape(8, 3, 2)
NS = (1, 2, 3)


def live_trace(
    lens: Lens,
    prompts: Sequence[list[int]],
    *,
    head: Eagle3Head,
    draft: Lens,
    probe: CopyProbe,
    max_new_tokens: int = 40,
    eos_ids: Sequence[int] = (),
) -> CounterfactualTrace:
    """What live drafters give at every position of the target's own greedy texts."""
    texts, tables = [], []
    for number, prompt in enumerate(prompts):
        done = generate(lens, prompt, max_new_tokens=max_new_tokens, eos_ids=eos_ids)
        ids = [*prompt, *done.ids]
        text = Text(tuple(ids), len(prompt), done.trace.finish, max_new_tokens, lens.n_ctx)
        drafters: dict[str, Drafter] = {
            "eagle3": Eagle3(head, lens, gamma=GAMMA),
            "sps": DraftModel(draft, lens, gamma=GAMMA),
            SHAPE.name: Eagle3(head, lens, tree=SHAPE),
        }
        sites = list(dict.fromkeys([probe.site, *drafters["eagle3"].sites]))
        out = lens.forward(torch.tensor([ids]), sites=sites)
        assert out.logits is not None
        best = out.logits[0].topk(2).values
        gaps = (best[:, 0] - best[:, 1])[len(prompt) - 1 : -1]
        streams = {site: stream[0] for site, stream in out.streams.items()}
        drafted = {
            name: _accepted(drafter, text, streams, eos_ids) for name, drafter in drafters.items()
        }
        tables.append(
            positions_table(
                f"p{number}", text, scores=probe.score(streams[probe.site])[:-1].tolist(),
                gaps=gaps.tolist(), ns=NS, stops=frozenset(eos_ids), drafted=drafted,
            )
        )  # fmt: skip
        texts.append((f"p{number}", "tiny", ids, len(prompt), done.trace.finish))
    frame = pd.DataFrame(texts, columns=["prompt_id", "set", "ids", "n_prompt", "finish"])
    return CounterfactualTrace(
        frame,
        pd.concat(tables, ignore_index=True),
        {
            "eos_ids": list(eos_ids), "model": lens.fingerprint,
            "probe": {"tau": probe.tau, "digest": probe.digest},
            "eagle3": {"digest": head.digest}, "sps": {"digest": draft.digest},
        },
    )  # fmt: skip


def _accepted(
    drafter: Drafter, text: Text, streams: dict[str, torch.Tensor], eos_ids: Sequence[int]
) -> np.ndarray:
    ids, found = list(text.ids), []
    for place, limit in zip(text.positions.tolist(), text.limits.tolist(), strict=True):
        drafter.follow(Sampling())
        drafter.reset()
        if place > 1:
            drafter.absorb({site: streams[site][: place - 1] for site in drafter.sites})
        accepted = 0
        if limit > 0:
            tree = drafter.propose(ids[:place], limit, None)
            rest = [*ids[place:], -1, -1]
            accepted = len(verify_greedy(tree, lambda _, path, r=rest: r[len(path)]).nodes)
        found.append(accepted)
    return np.array(found)


def made_up(
    prompts: int = 3, tokens: int = 12, *, seed: int = 0, vocab: int = 3
) -> CounterfactualTrace:
    """Random texts over few tokens, with random scores and accepted lengths."""
    rng = np.random.default_rng(seed)
    texts, tables = [], []
    for number in range(prompts):
        n_prompt = int(rng.integers(2, 9))
        block = rng.integers(0, vocab, 40).tolist()
        ids = [*rng.integers(0, vocab, n_prompt).tolist()]
        while len(ids) < n_prompt + tokens:  # stretches that repeat, and some that do not
            start = int(rng.integers(0, 30))
            ids += block[start : start + int(rng.integers(1, 10))]
        text = Text(tuple(ids[: n_prompt + tokens]), n_prompt, "length", tokens, 4096)
        drafted = {
            name: np.minimum(rng.geometric(0.4, tokens) - 1, np.clip(text.limits, 0, most))
            for name, most in (("eagle3", GAMMA), ("sps", GAMMA), ("tree_8_3_2", 4))
        }
        scores = rng.random(len(text.ids) - 1)
        tables.append(
            positions_table(
                f"p{number}", text, scores=scores.tolist(), gaps=rng.random(tokens).tolist(),
                ns=(1, 2, 3, 4, 5), stops=frozenset(), drafted=drafted,
            )
        )  # fmt: skip
        texts.append((f"p{number}", f"set{number % 2}", list(text.ids), n_prompt, "length"))
    frame = pd.DataFrame(texts, columns=["prompt_id", "set", "ids", "n_prompt", "finish"])
    positions = pd.concat(tables, ignore_index=True)
    return CounterfactualTrace(frame, positions, {"model": "f" * 32, "probe": {"tau": 0.5}})


def written(folder: Path, trace: CounterfactualTrace, **config: Any) -> Run:
    """The trace as a run folder, not finished yet."""
    settings = {
        "max_new_tokens": 12, "ns": [1, 2, 3, 4, 5], "sampling": {"temperature": 0.0},
        "model": trace.fingerprint, "tokenizer": None, "eos_ids": [], "eagle3": None, "sps": None,
        "probe": {"tau": trace.tau},
    }  # fmt: skip
    run = Run.start(folder, command="trace", config={**settings, **config})
    run.write_table("prompts", trace.prompts.assign(max_new_tokens=12, n_ctx=4096))
    for number, (_, rows) in enumerate(trace.positions.groupby("prompt_id", sort=False)):
        write_parquet(positions_file(folder, number), rows)
    return run


def profile_for(kinds: Sequence[str] = ("eagle3", "sps", "tree_8_3_2")) -> LatencyProfile:
    """Costs of a made-up machine on which nothing is free."""

    def surface(rows: list[float], columns: list[float], *terms: float) -> Surface:
        x, y = np.array(rows), np.array(columns)
        base, along, across = terms
        ms = base + along * x[:, None] + across * np.sqrt(y)
        return Surface(x, y, ms)

    return LatencyProfile(
        surface([1, 4, 16, 64], [8, 64, 512], 20.0, 0.7, 0.2),
        {
            kind: surface([1, 5, 10], [1, 8, 64], 0.3 + 0.2 * number, 1.3 + number, 0.4)
            for number, kind in enumerate(kinds)
        },
        overhead_ms=0.5,
        lookup_ms=0.05,
        gate_ms=0.03,
    )
