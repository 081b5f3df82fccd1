"""Race methods over prompts, one prompt after the other, and keep each prompt's tables at once.

All methods decode a prompt before the next one begins, and who goes first changes from prompt to
prompt: a slow minute falls on all alike. Before the first prompt each decodes a few tokens
uncounted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...data.context_index import SPAN, copy_yield
from ...data.labels import loop_start
from ...decoding.drafters.copy import RecentCopier
from ...decoding.engine import default_sampling, generate
from ...decoding.exactness.reference import reference_ids
from ...decoding.policies import Policy
from ...decoding.step.sampling import Sampling
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import read_parquet, write_parquet
from .clocks import Watched
from .methods import Method
from .transformers import TRANSFORMERS, run_reference

WARM_TOKENS = 12

_PARTS = ("runs", "steps", "tokens")


@dataclass(frozen=True)
class Race:
    """What was measured; every table has set, prompt_id and policy (a label).

    Attributes:
        runs: one row a text: n_prompt, n_text (new tokens), prefill_s (the draft's included),
            draft_prefill_s, token_exact (against transformers' own text; None if there is none).
        steps: one row a step, `Watched.steps`.
        tokens: one row a token, the prompt's with step −1: position, id, step.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    tokens: pd.DataFrame

    @classmethod
    def joined(cls, races: Sequence[Race]) -> Race:
        """Several one after the other."""
        parts = ([getattr(race, part) for race in races] for part in _PARTS)
        return cls(*(pd.concat(frames, ignore_index=True) for frames in parts))


def race_text(
    lens: Lens,
    prompt: Sequence[int],
    methods: Mapping[str, Method],
    outside: Mapping[str, dict[str, Any]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    start: int = 0,
) -> Race:
    """One prompt under every method.

    Args:
        lens: the target.
        prompt: token ids.
        methods: policies by label.
        outside: transformers' own ways by label (`bench_reference.references`); none where it is
            sampled.
        max_new_tokens: budget.
        sampling: greedy if None.
        start: whose turn it is first.
    """
    labels = [*methods, *outside]
    first = start % len(labels)
    raced = {
        label: _policy(lens, prompt, methods[label], max_new_tokens, sampling)
        if label in methods
        else _outside(lens, prompt, label, outside[label], max_new_tokens)
        for label in labels[first:] + labels[:first]
    }
    race = Race.joined([raced[label] for label in labels])
    texts = race.tokens[race.tokens["step"] >= 0].groupby("policy", sort=False)["id"].agg(tuple)
    truth = texts.get(TRANSFORMERS)
    exact = [None if truth is None else texts[label] == truth for label in race.runs["policy"]]
    return replace(race, runs=race.runs.assign(token_exact=pd.array(exact, dtype="boolean")))


def race_prompts(
    folder: Path,
    lens: Lens,
    prompts: pd.DataFrame,
    methods: Mapping[str, Method],
    outside: Mapping[str, dict[str, Any]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    progress: Progress = silent,
) -> Race:
    """Every prompt in turn; those whose tables lie in the folder are read from there.

    Args:
        folder: of the kept tables, one folder a prompt.
        lens: the target.
        prompts: prompt_id, set, ids.
        methods: policies by label.
        outside: transformers' own ways by label.
        max_new_tokens: budget of each.
        temperature: above 0 the n-th prompt is sampled with seed n, from the same settings else.
        progress: told the number of prompts of each set.
    """
    found, warm = [], False
    totals = prompts["set"].value_counts()
    done = dict.fromkeys(totals.index, 0)
    for number, (prompt_id, name, ids) in enumerate(
        zip(prompts["prompt_id"], prompts["set"], prompts["ids"], strict=True)
    ):
        what = f"{name}, temperature {temperature:g}" if temperature else str(name)
        progress(what, done[name], int(totals[name]))
        files = [folder / f"{number:04d}" / f"{part}.parquet" for part in _PARTS]
        if not all(file.is_file() for file in files):
            prompt = [int(token) for token in ids]
            if not warm:
                race_text(lens, prompt, methods, outside, max_new_tokens=WARM_TOKENS)
                warm = True
            sampling = None
            if temperature:
                sampling = replace(default_sampling(lens), temperature=temperature, seed=number)
            race = race_text(
                lens, prompt, methods, outside, max_new_tokens=max_new_tokens, sampling=sampling,
                start=number,
            )  # fmt: skip
            for part, file in zip(_PARTS, files, strict=True):
                frame = getattr(race, part)
                frame.insert(0, "set", name)
                frame.insert(1, "prompt_id", prompt_id)
                write_parquet(file, frame)
        found.append(Race(*(read_parquet(file) for file in files)))
        done[name] += 1
        progress(what, done[name], int(totals[name]))
    return Race.joined(found)


def _policy(
    lens: Lens,
    prompt: Sequence[int],
    method: Method,
    max_new_tokens: int,
    sampling: Sampling | None,
) -> Race:
    watched = Watched.of(method.policy, prompt, lens.device)
    trace = generate(
        lens, prompt, watched.policy, max_new_tokens=max_new_tokens, sampling=sampling
    ).trace
    row = {
        "n_prompt": len(prompt),
        "n_text": len(trace.generated),
        "prefill_s": trace.prefill_ms / 1e3,
        "draft_prefill_s": watched.draft_prefill_s,
    }
    steps = watched.steps(trace)
    tokens = trace.tokens_frame()[["position", "id", "step"]]
    return _labelled(method.label, row, steps, tokens)


def _outside(
    lens: Lens, prompt: Sequence[int], label: str, arguments: dict[str, Any], max_new_tokens: int
) -> Race:
    done = run_reference(lens, prompt, arguments, max_new_tokens=max_new_tokens)
    row = {
        "n_prompt": len(prompt),
        "n_text": len(done.ids),
        "prefill_s": done.prefill_s,
        "draft_prefill_s": 0.0,
    }
    ids = [*prompt, *done.ids]
    step = [-1] * len(prompt) + [0] * len(done.ids)
    tokens = pd.DataFrame({"position": range(len(ids)), "id": ids, "step": step})
    return _labelled(label, row, done.steps, tokens)


def _labelled(label: str, row: dict[str, Any], steps: pd.DataFrame, tokens: pd.DataFrame) -> Race:
    return Race(
        pd.DataFrame([{"policy": label, **row}]),
        steps.assign(policy=label),
        tokens.assign(policy=label),
    )


@dataclass(frozen=True)
class PromptRace:
    """All policies on one prompt.

    Attributes:
        runs: policy, n_tokens, decode_s, prefill_s, token_exact; one row a policy.
        steps: `StepLog.steps_frame` of all policies.
        tokens: `StepLog.tokens_frame` of all policies.
        copy_yield: what copying would have had accepted at every position of the text.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    tokens: pd.DataFrame
    copy_yield: pd.DataFrame


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
    tau = policy.gate.tau
    table["probe_on"] = table["score"] >= (np.nan if tau is None else tau)
    table["in_loop"] = table["position"] >= len(prompt) + loop_start(new)
    table.insert(0, "prompt_id", prompt_id)
    return table
