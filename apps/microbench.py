"""Small measurements on this machine: what the live hook costs and how fast the index is.

The two sides of a ratio are measured in turns, in one process, on the same inputs.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import torch

from ..data.context_index import ContextIndex
from ..probing.lens import Lens
from ..progress import Progress
from ..runs import Run


def hook_tax(lens: Lens, *, repeats: int = 150, context: int = 256, progress: Progress) -> float:
    """Median one-token decode of the live backend with one site captured, over plain transformers'.

    Both decode the same token on the same cache contents, alternating; each with its own cache as
    it comes (transformers: DynamicCache). Returns the ratio minus 1.
    """
    from transformers import DynamicCache

    site = f"blocks.{lens.n_layers // 2}.hook_attn_out"
    ids = torch.randint(5, lens.d_vocab, (1, context), generator=torch.Generator().manual_seed(0))
    ids = ids.to(lens.device)
    kv, plain = lens.new_kv(), DynamicCache(config=lens.config)
    lens.forward(ids, kv=kv, logits="last")
    with torch.no_grad():
        lens.model(ids, past_key_values=plain, use_cache=True)
    token = ids[:, :1]
    times: dict[str, list[float]] = {"live": [], "plain": []}
    for turn in range(repeats):
        progress("hook tax", turn, repeats)
        for side in ("live", "plain") if turn % 2 else ("plain", "live"):
            begin = time.perf_counter()
            if side == "live":
                lens.forward(token, sites=[site], kv=kv)
            else:
                with torch.no_grad():
                    lens.model(token, past_key_values=plain, use_cache=True)
            if lens.device.type == "cuda":
                torch.cuda.synchronize(lens.device)
            times[side].append(time.perf_counter() - begin)
        kv.rollback(context)
        plain.crop(-1)
    progress("hook tax", repeats, repeats)
    ratios = np.array(times["live"]) / np.array(times["plain"])
    return float(np.median(ratios)) - 1


def index_microseconds(*, context: int = 100_000, steps: int = 2_000, seed: int = 0) -> float:
    """Mean time of a step (append a token, look up W = 4 candidates) at the end of a long context.

    The context mixes fresh tokens with repeats of its own earlier spans, so most lookups hit.
    """
    rng = random.Random(seed)
    ids: list[int] = []
    while len(ids) < context + steps:
        if len(ids) > 200 and rng.random() < 0.5:
            start = rng.randrange(len(ids) - 60)
            ids += ids[start : start + rng.randrange(5, 60)]
        else:
            ids += [rng.randrange(2_000) for _ in range(20)]
    index = ContextIndex(3)
    index.extend(ids[:context])
    begin = time.perf_counter()
    for token in ids[context : context + steps]:
        index.append(token)
        found = index.candidates(4, 10)
        if found:
            index.match_length(found[0].source)
    return 1e6 * (time.perf_counter() - begin) / steps


def run_microbench(lens: Lens, path: Path, *, progress: Progress) -> Run:
    """Measure and write `hook_tax` and `index_us_per_step_100k` to the run's metrics."""
    run = Run.start(path, command="microbench", config={"model": lens.name, "dtype": lens.dtype})
    run.describe(model={"name": lens.name, "fingerprint": lens.fingerprint}, dtype=lens.dtype)
    run.update_metrics(
        model=lens.name,
        dtype=lens.dtype,
        hook_tax=hook_tax(lens, progress=progress),
        index_us_per_step_100k=index_microseconds(),
    )
    run.finish()
    return run
