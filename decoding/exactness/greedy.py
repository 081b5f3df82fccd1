"""Is greedy decoding lossless? Every policy's text against transformers' own, token for token."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ...probing.lens import Lens
from ...probing.loading import wrap
from ...progress import Progress, silent
from ...runs import read_parquet, write_parquet
from ..engine import generate
from ..policies import Policy
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
