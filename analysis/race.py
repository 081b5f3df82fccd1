"""Run policies over the same prompts, interleaved prompt by prompt, and put them in one table.

Conventions: decode time only (the prompt's forward is apart), every token counted once up to and
with the end-of-text id, accepted lengths without the bonus, speedup over vanilla in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from ..data.context_index import SPAN, copy_yield
from ..data.labels import loop_start
from ..decoding.drafters.copy import RecentCopier
from ..decoding.engine import generate
from ..decoding.policies import Policy
from ..probing.lens import Lens


@dataclass(frozen=True)
class PromptRace:
    """All policies on one prompt.

    Attributes:
        runs: policy, n_tokens, decode_s, prefill_s, token_exact; one row a policy.
        steps: `Trace.steps_frame` of all policies.
        tokens: `Trace.tokens_frame` of all policies.
        copy_yield: what copying would have had accepted at every position of the text.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    tokens: pd.DataFrame
    copy_yield: pd.DataFrame


def reference_ids(lens: Lens, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """transformers' own greedy continuation."""
    ids = torch.tensor([list(prompt)], device=lens.device)
    pad = lens.eos_ids[0] if lens.eos_ids else 0
    out = lens.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=pad,
    )
    return out[0, len(prompt) :].tolist()


def race_prompt(
    lens: Lens,
    prompt_id: str,
    prompt: Sequence[int],
    policies: Mapping[str, Policy],
    *,
    max_new_tokens: int,
    start: int = 0,
) -> PromptRace:
    """Decode one prompt under every policy and compare the text with transformers' own.

    Args:
        lens: the target.
        prompt_id: names the prompt in the tables.
        prompt: token ids.
        policies: by name; the one named switchsd gives the probe scores of `copy_yield`.
        max_new_tokens: budget.
        start: which policy goes first; give the prompt's number, so that each is first in turn.
    """
    truth = reference_ids(lens, prompt, max_new_tokens)
    names = list(policies)
    order = names[start % len(names) :] + names[: start % len(names)]
    runs, steps, tokens = [], [], []
    yields = pd.DataFrame()
    for name in order:
        result = generate(lens, prompt, policies[name], max_new_tokens=max_new_tokens)
        trace = result.trace
        runs.append(
            {
                "prompt_id": prompt_id,
                "policy": name,
                "n_tokens": len(result.ids),
                "decode_s": trace.decode_ms / 1e3,
                "prefill_s": trace.prefill_ms / 1e3,
                "token_exact": result.ids == truth,
            }
        )
        steps.append(trace.steps_frame().assign(prompt_id=prompt_id))
        tokens.append(trace.tokens_frame(lens.tokenizer).assign(prompt_id=prompt_id))
        if name == "switchsd":
            yields = _yields(prompt_id, policies[name], list(prompt), result.ids, trace.scores)
    return PromptRace(
        pd.DataFrame(runs),
        pd.concat(steps, ignore_index=True),
        pd.concat(tokens, ignore_index=True),
        yields,
    )


def race_table(runs: pd.DataFrame, steps: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Pool prompts into one row a policy.

    Args:
        runs: `PromptRace.runs` of all prompts.
        steps: their steps.
        order: policies, vanilla among them.

    Returns:
        policy, tokens_per_s, speedup, copy_step_share, mean_accepted (of copy steps; NaN without
        any), neural_accepted (of steps that verified a neural draft), n_prompts, token_exact.
    """
    rows = []
    speed = {
        name: group["n_tokens"].sum() / group["decode_s"].sum()
        for name, group in runs.groupby("policy")
    }
    for name in order:
        mine = steps[steps["policy"] == name]
        copies = mine[mine["path"] == "copy"]
        drafts = mine[(mine["path"] == "neural") & (mine["proposed"] > 0)]
        rows.append(
            {
                "policy": name,
                "tokens_per_s": speed[name],
                "speedup": speed[name] / speed["vanilla"],
                "copy_step_share": len(copies) / len(mine),
                "mean_accepted": copies["accepted"].mean() if len(copies) else np.nan,
                "neural_accepted": drafts["accepted"].mean() if len(drafts) else np.nan,
                "n_prompts": runs.loc[runs["policy"] == name, "prompt_id"].nunique(),
                "token_exact": bool(runs.loc[runs["policy"] == name, "token_exact"].all()),
            }
        )
    return pd.DataFrame(rows)


def _yields(
    prompt_id: str, policy: Policy, prompt: list[int], new: list[int], scores: list[float]
) -> pd.DataFrame:
    """Both what the gate saw and what copying would have brought, at every anchor position that
    is followed by as many tokens as a copy is long."""
    ids = prompt + new
    copier = policy.copier
    rule = {"n": copier.n, "W": copier.W} if isinstance(copier, RecentCopier) else {}
    table = pd.DataFrame(copy_yield(ids, len(prompt) - 1, D=SPAN, **rule))
    # near the end of the text a copy is cut short by the budget, not by the target
    table = table[table["position"] <= len(ids) - SPAN].reset_index(drop=True)
    # the newest processed position lies before the anchor, which lies before the first draft token
    table["score"] = [
        scores[p - 2] if 0 <= p - 2 < len(scores) else np.nan for p in table["position"]
    ]
    tau = getattr(policy.gate, "tau", np.nan)
    table["probe_on"] = table["score"] >= tau
    table["in_loop"] = table["position"] >= len(prompt) + loop_start(new)
    table.insert(0, "prompt_id", prompt_id)
    return table
