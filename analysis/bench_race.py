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

import pandas as pd

from ..decoding.engine import default_sampling, generate
from ..decoding.sampling import Sampling
from ..probing.lens import Lens
from ..progress import Progress, silent
from ..runs import read_parquet, write_parquet
from .bench_methods import Method
from .bench_reference import TRANSFORMERS, run_reference
from .bench_watch import Watched

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
