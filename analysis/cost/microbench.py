"""Small measurements on this machine: the live hook, the index, the loop, and PLD beside
transformers' own.

The two sides of a ratio are measured in turns, in one process, on the same inputs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ...data.benchmarks import load_benchmark
from ...data.chat import chat_ids
from ...data.context_index import ContextIndex
from ...decoding.engine import generate
from ...decoding.policies import Options
from ...decoding.step.clock import now
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress
from ...runs import Run


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
            times[side].append(now(lens.device) - begin)
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


def loop_share(lens: Lens, prompts: list[list[int]], *, progress: Progress) -> float:
    """Share of step time outside the target's forward, pooled over SwitchSD and PLD steps.

    Lookup, gate, tree, mask building, verification, KV and trace all count; what a trace calls
    draft_ms and overhead_ms.
    """
    weight = torch.zeros(lens.d_model)
    site = f"blocks.{lens.n_layers // 2}.hook_attn_out"
    probe = CopyProbe(site, 2, 0.5, weight, 1.0, lens.name, lens.fingerprint)  # always on
    outside = total = 0.0
    for done, prompt in enumerate(prompts):
        progress("loop", done, len(prompts))
        for policy in ("pld", "switchsd"):
            options = Options(W=4, D=20, probe=probe)
            trace = generate(lens, prompt, policy, options=options, max_new_tokens=64).trace
            outside += sum(step.draft_ms + step.overhead_ms for step in trace.steps)
            total += trace.decode_ms
    progress("loop", len(prompts), len(prompts))
    return outside / total


def pld_beside_transformers(
    lens: Lens, prompts: list[list[int]], *, max_new_tokens: int = 128, progress: Progress
) -> dict[str, float]:
    """PLD here over transformers' `prompt_lookup_num_tokens`: target forwards and tokens/s.

    Both run the same prompts, one after the other in changing order, prefill counted in both.

    Raises:
        SwitchSDError: the two texts differ.
    """
    forwards = {"here": 0, "transformers": 0}
    seconds = {"here": 0.0, "transformers": 0.0}
    side = "here"

    def count(*_: object) -> None:
        forwards[side] += 1

    handle = lens.model.register_forward_hook(count)
    pad = lens.eos_ids[0] if lens.eos_ids else 0
    try:
        for done, prompt in enumerate(prompts):
            progress("pld", done, len(prompts))
            texts = {}
            ids = torch.tensor([prompt], device=lens.device)
            for side in ("here", "transformers") if done % 2 else ("transformers", "here"):
                begin = time.perf_counter()
                if side == "here":
                    texts[side] = generate(lens, prompt, "pld", max_new_tokens=max_new_tokens).ids
                else:
                    out = lens.model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=max_new_tokens,
                        do_sample=False,
                        prompt_lookup_num_tokens=10,
                        max_matching_ngram_size=2,
                        pad_token_id=pad,
                    )
                    texts[side] = out[0, len(prompt) :].tolist()
                seconds[side] += time.perf_counter() - begin
            if texts["here"] != texts["transformers"]:
                raise SwitchSDError(f"the two texts of prompt {done} differ: is it float32?")
    finally:
        handle.remove()
    progress("pld", len(prompts), len(prompts))
    return {
        # the prompt's own forward is one of transformers' and not one of `lens.model`'s here
        "pld_forwards_over_transformers": forwards["here"] / forwards["transformers"],
        "pld_speed_over_transformers": seconds["transformers"] / seconds["here"],
    }


def run_microbench(lens: Lens, path: Path, *, n_prompts: int = 20, progress: Progress) -> Run:
    """Measure hook tax, index, loop share and PLD, and write them to the run's metrics.

    The prompts are HumanEval's; each finished figure stays after an interrupt.
    """
    config = {"model": lens.fingerprint, "dtype": lens.dtype, "n_prompts": n_prompts}
    run = Run.start(path, command="microbench", config=config)
    run.describe(model={"name": lens.name, "fingerprint": lens.fingerprint}, dtype=lens.dtype)
    run.update_metrics(model=lens.name, dtype=lens.dtype, n_prompts=n_prompts)
    turns = load_benchmark("humaneval", limit=n_prompts)["turns"]
    prompts = [chat_ids(lens.tokenizer, list(t)) for t in turns]
    generate(lens, prompts[0], "vanilla", max_new_tokens=4)  # warm-up
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "hook_tax": lambda: {"hook_tax": hook_tax(lens, progress=progress)},
        "index_us_per_step_100k": lambda: {"index_us_per_step_100k": index_microseconds()},
        "loop_overhead_share": lambda: {
            "loop_overhead_share": loop_share(lens, prompts[:6], progress=progress)
        },
        "pld_speed_over_transformers": lambda: pld_beside_transformers(
            lens, prompts, progress=progress
        ),
    }
    for key, measure in measures.items():
        if key not in run.metrics():
            run.update_metrics(**measure())
    run.finish()
    return run
