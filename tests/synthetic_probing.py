"""A small labelled corpus with planted activations, in a real activation store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from switchsd.probing.activations.store import StoreKey, create_or_resume, open_store
from switchsd.probing.corpora.partition import assign_parts, parts_of
from switchsd.probing.corpora.token_table import GATE_LAG, token_table
from switchsd.probing.training.probing_set import ProbingSet

WIDTH = 12
SITES = ("blocks.0.hook_attn_out", "blocks.1.hook_attn_out", "blocks.1.hook_resid_mid")
CLASSES = np.zeros(64, dtype=int)  # every id is a word


def texts(n_prompts: int, *, seed: int = 0, length: int = 60) -> pd.DataFrame:
    """Two texts a prompt: random tokens that copy spans of their prompt now and then.

    Some copied starts go on differently, so that a match does not mean a copy.
    """
    random = np.random.default_rng(seed)
    rows = []
    for prompt in range(n_prompts):
        context = random.integers(3, 64, 40).tolist()
        for temperature in (0.0, 0.8):
            ids: list[int] = []
            while len(ids) < length:
                ids += random.integers(3, 64, int(random.integers(4, 10))).tolist()
                size = int(random.integers(3, 20))
                start = int(random.integers(0, len(context) - size))
                ids += context[start : start + size]
            rows.append((f"p{prompt:03d}", f"f{prompt % 3}", temperature, seed, context,
                         ids[:length]))  # fmt: skip
    names = ["prompt_id", "family", "temperature", "seed", "prompt_ids", "completion_ids"]
    return pd.DataFrame(rows, columns=names)


def planted_set(
    folder: Path,
    corpus: pd.DataFrame,
    *,
    name: str = "synthetic",
    strength: float = 2.0,
    plant: str = "copied",
    split: bool = True,
    seed: int = 0,
    table: pd.DataFrame | None = None,
) -> ProbingSet:
    """Noise at every site, and at `blocks.1.hook_attn_out` the target of the token two later.

    Args:
        folder: of the store.
        corpus: prompt_ids and completion_ids.
        name: of the set.
        strength: of the planted direction, in standard deviations of the noise.
        plant: `copied`, `accepted` (three or more would be) or `prompt` (which prompt it is).
        split: by prompt; otherwise everything is test.
        seed: of noise and split.
        table: token table, if there is one already.
    """
    table = token_table(corpus, CLASSES) if table is None else table
    random = np.random.default_rng(seed)
    key = StoreKey("m" * 8, SITES, "float32", "live", "c" * 8, "r" * 8, {"torch": "0"})
    names, codes = np.unique(corpus["prompt_id"], return_inverse=True)
    identity = random.normal(size=(len(names), WIDTH))
    said = {
        "copied": table["copied"].to_numpy(float),
        "accepted": (table["accepted"] >= 3).to_numpy(float),
        "prompt": np.zeros(len(table)),
    }[plant]
    answer = dict(zip(zip(table["row"], table["position"], strict=True), said, strict=True))
    with create_or_resume(folder, key, d=dict.fromkeys(SITES, WIDTH)) as writer:
        for row in range(len(corpus)):
            start = len(corpus["prompt_ids"].iloc[row])
            positions = np.arange(start - 2, start + len(corpus["completion_ids"].iloc[row]))
            planted = random.normal(size=(len(positions), WIDTH))
            planted[:, 0] += [strength * answer.get((row, p + GATE_LAG), 0.0) for p in positions]
            if plant == "prompt":
                planted += strength * identity[codes[row]]
            streams = {site: random.normal(size=(len(positions), WIDTH)) for site in SITES}
            streams["blocks.1.hook_attn_out"] = planted
            writer.append(
                f"{row}",
                {site: torch.from_numpy(x).float() for site, x in streams.items()},
                {"row": np.full(len(positions), row), "position": positions},
            )
    part = np.full(len(table), "test", dtype=object)
    if split:
        assigned = assign_parts(corpus["prompt_id"], corpus["family"], seed=seed)
        part = parts_of(table["prompt_id"], assigned)
    return ProbingSet(name, table, open_store(folder), part)
