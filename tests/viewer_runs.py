"""Run folders for the viewer's tests: a demo's run with a counterfactual trace of its texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from demo_run import TAU
from switchsd.analysis.traces.columns import GAMMA, Text, positions_table
from switchsd.analysis.traces.trace import CounterfactualTrace
from switchsd.runs import Run
from tiny_traces import profile_for, written


def trace_of(run: Run, *, seed: int = 0, prompts: int = 3) -> CounterfactualTrace:
    """Random scores and neural drafts over the texts that a run's switchsd policy decoded."""
    rng = np.random.default_rng(seed)
    tokens = run.table("tokens").query("policy == 'switchsd'")
    texts, tables = [], []
    for prompt_id in list(dict.fromkeys(tokens["prompt_id"]))[:prompts]:
        rows = tokens[tokens["prompt_id"] == prompt_id].sort_values("position")
        n_prompt = int((rows["path"] == "prompt").sum())
        ids = [int(token) for token in rows["id"]]
        new = len(ids) - n_prompt
        text = Text(tuple(ids), n_prompt, "length", new, 16_384)
        most = np.clip(text.limits, 0, GAMMA)
        tables.append(
            positions_table(
                prompt_id, text, scores=rng.random(len(ids) - 1).tolist(),
                gaps=rng.random(new).tolist(), ns=(3,), stops=frozenset(),
                drafted={"eagle3": np.minimum(rng.geometric(0.4, new) - 1, most)},
            )
        )  # fmt: skip
        texts.append((prompt_id, "humaneval", ids, n_prompt, "length"))
    frame = pd.DataFrame(texts, columns=["prompt_id", "set", "ids", "n_prompt", "finish"])
    return CounterfactualTrace(
        frame, pd.concat(tables, ignore_index=True), {"model": "f" * 32, "probe": {"tau": TAU}}
    )


def make_trace(
    folder: Path, run: Run, name: str = "trace", *, profile: bool = True, prompts: int = 3
) -> Run:
    """Write such a trace beside the run, and what steps cost."""
    made = written(folder / name, trace_of(run, prompts=prompts), ns=[3])
    made.describe(model={"name": "tiny", "fingerprint": "f" * 32})
    made.finish()
    if profile:
        costs = profile_for(("eagle3",))
        costs.save(folder / "profile.json")
    return made
