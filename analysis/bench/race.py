"""Race policies over prompts, one prompt after the other, and keep each prompt's tables at once.

All decode a prompt before the next one begins, and who goes first changes from prompt to prompt: a
slow minute falls on all alike. Before the first prompt each decodes a few tokens uncounted.
`switchsd bench`, `draft eval` and `demo` are all this race, of other policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ...data.labels import loop_start
from ...data.token_texts import token_texts
from ...decoding.engine import default_sampling, generate
from ...decoding.exactness.reference import reference_ids
from ...decoding.policies import Policy
from ...decoding.step.sampling import Sampling
from ...probing.corpora.asked import one_by_one
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import read_parquet, write_parquet
from .clocks import Watched
from .transformers import TRANSFORMERS, run_reference

WARM_TOKENS = 12

_PARTS = ("runs", "steps", "tokens")


@dataclass(frozen=True)
class Race:
    """What was measured; every table has set, prompt_id and policy (a label).

    Attributes:
        runs: one row a text: n_prompt, n_text (new tokens), prefill_s (the draft's included),
            draft_prefill_s, token_exact (against transformers' own greedy text; None if sampled).
        steps: one row a step, `Watched.steps`, and loop (position at which the text's loop starts;
            behind its end without one).
        tokens: one row a token, the prompt's with step −1: position, id, step, path, source, score.
    """

    runs: pd.DataFrame
    steps: pd.DataFrame
    tokens: pd.DataFrame

    @classmethod
    def joined(cls, races: Sequence[Race]) -> Race:
        """Several one after the other."""
        parts = ([getattr(race, part) for race in races] for part in _PARTS)
        return cls(*(pd.concat(frames, ignore_index=True) for frames in parts))

    @classmethod
    def kept(cls, folder: Path) -> Race | None:
        """One prompt's, if it is finished."""
        files = [folder / f"{part}.parquet" for part in _PARTS]
        if not all(file.is_file() for file in files):
            return None
        race = cls(*map(read_parquet, files))
        return race if "loop" in race.steps else None  # of version 0.1, which went on from others


def race_text(
    lens: Lens,
    prompt: Sequence[int],
    policies: Mapping[str, Policy],
    outside: Mapping[str, dict[str, Any]] | None = None,
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    start: int = 0,
) -> Race:
    """One prompt under every policy; its tables name no set and no prompt.

    Args:
        lens: the target.
        prompt: token ids.
        policies: by label.
        outside: transformers' own ways by label (`transformers.references`); none where it is
            sampled. Without them its greedy text is made apart, to compare with.
        max_new_tokens: budget.
        sampling: greedy if None.
        start: whose turn it is first.
    """
    outside = outside or {}
    labels = [*policies, *outside]
    first = start % len(labels)
    raced = {
        label: _policy(lens, prompt, label, policies[label], max_new_tokens, sampling)
        if label in policies
        else _outside(lens, prompt, label, outside[label], max_new_tokens)
        for label in labels[first:] + labels[:first]
    }
    race = Race.joined([raced[label] for label in labels])
    texts = race.tokens[race.tokens["step"] >= 0].groupby("policy", sort=False)["id"].agg(tuple)
    exact: list[bool | None] = [None] * len(labels)
    if sampling is None:
        truth = texts.get(TRANSFORMERS)
        if truth is None:
            truth = tuple(reference_ids(lens, prompt, max_new_tokens))
        exact = [texts[label] == truth for label in labels]
    return replace(race, runs=race.runs.assign(token_exact=pd.array(exact, dtype="boolean")))


def race_prompts(
    folder: Path | None,
    lens: Lens,
    prompts: pd.DataFrame,
    policies: Mapping[str, Policy],
    outside: Mapping[str, dict[str, Any]] | None = None,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    progress: Progress = silent,
) -> Race:
    """Every prompt in turn; those whose tables lie in the folder are read from there.

    Args:
        folder: of the kept tables, one folder a prompt; None keeps none.
        lens: the target.
        prompts: prompt_id, set, ids.
        policies: by label.
        outside: transformers' own ways by label.
        max_new_tokens: budget of each.
        temperature: above 0 the n-th prompt is sampled with seed n, from the same settings else.
        progress: told the number of prompts of each set.
    """
    found, warm = [], False
    about = f", temperature {temperature:g}" if temperature else ""
    for number, prompt_id, name, prompt in one_by_one(prompts, progress, about):
        place = None if folder is None else folder / f"{number:04d}"
        race = None if place is None else Race.kept(place)
        if race is None:
            if not warm:
                race_text(lens, prompt, policies, outside, max_new_tokens=WARM_TOKENS)
                warm = True
            sampling = None
            if temperature:
                sampling = replace(default_sampling(lens), temperature=temperature, seed=number)
            race = race_text(
                lens, prompt, policies, outside, max_new_tokens=max_new_tokens, sampling=sampling,
                start=number,
            )  # fmt: skip
            for part in _PARTS:
                frame = getattr(race, part)
                frame.insert(0, "set", name)
                frame.insert(1, "prompt_id", prompt_id)
                if place is not None:
                    write_parquet(place / f"{part}.parquet", frame)
        found.append(race)
    return Race.joined(found)


def with_texts(tokens: pd.DataFrame, lens: Lens) -> pd.DataFrame:
    """`Race.tokens` with each token's text (`token_texts`)."""

    def texts(ids: pd.Series) -> pd.Series:
        return pd.Series(token_texts(ids.tolist(), lens.tokenizer.decode), index=ids.index)

    by = tokens.groupby(["prompt_id", "policy"], sort=False)["id"]
    return tokens.assign(text=by.transform(texts).astype(str))


def divergences(lens: Lens, tokens: pd.DataFrame, base: str = "vanilla") -> pd.DataFrame:
    """Where a policy's text leaves vanilla's, which rounding can do outside float32.

    Args:
        lens: the target.
        tokens: set, prompt_id, policy, position, id, step (below 0: the prompt's).
        base: the policy whose texts the others should have.

    Returns:
        set, prompt_id, policy, at (new tokens before it), margin (between the two highest logits
        there, from one forward over the text so far).
    """
    rows = []
    for (name, prompt_id), part in tokens.sort_values("position").groupby(
        ["set", "prompt_id"], sort=False
    ):
        texts = dict(iter(part.groupby("policy", sort=False)))
        whole = texts[base]["id"].tolist()
        n_prompt = int((texts[base]["step"] < 0).sum())
        for policy, text in texts.items():
            ids = text["id"].tolist()
            shorter = min(len(ids), len(whole))
            same = next((i for i in range(shorter) if ids[i] != whole[i]), shorter)
            if same == len(ids) == len(whole):
                continue
            logits = lens.forward(
                torch.tensor([whole[:same]], device=lens.device), logits="last"
            ).logits
            assert logits is not None
            best = logits[0, -1].float().topk(2).values
            margin = float(best[0] - best[1])
            at = same - n_prompt
            rows.append((name, prompt_id, policy, at, margin))
    return pd.DataFrame(rows, columns=["set", "prompt_id", "policy", "at", "margin"])


def _policy(
    lens: Lens,
    prompt: Sequence[int],
    label: str,
    policy: Policy,
    max_new_tokens: int,
    sampling: Sampling | None,
) -> Race:
    watched = Watched.of(policy, prompt, lens.device)
    trace = generate(
        lens, prompt, watched.policy, max_new_tokens=max_new_tokens, sampling=sampling
    ).trace
    return _raced(
        label, prompt, trace.generated, watched.steps(trace), trace.tokens_frame(),
        prefill_s=trace.prefill_ms / 1e3, draft_prefill_s=watched.draft_prefill_s,
    )  # fmt: skip


def _outside(
    lens: Lens, prompt: Sequence[int], label: str, arguments: dict[str, Any], max_new_tokens: int
) -> Race:
    done = run_reference(lens, prompt, arguments, max_new_tokens=max_new_tokens)
    ids, new = [*prompt, *done.ids], len(done.ids)
    tokens = pd.DataFrame(
        {
            "position": range(len(ids)), "id": ids, "step": [-1] * len(prompt) + [0] * new,
            "path": ["prompt"] * len(prompt) + [""] * new, "source": -1, "score": np.nan,
        }
    )  # fmt: skip
    return _raced(
        label, prompt, done.ids, done.steps, tokens, prefill_s=done.prefill_s, draft_prefill_s=0.0
    )


def _raced(
    label: str,
    prompt: Sequence[int],
    new: list[int],
    steps: pd.DataFrame,
    tokens: pd.DataFrame,
    **seconds: float,
) -> Race:
    row = {"policy": label, "n_prompt": len(prompt), "n_text": len(new), **seconds}
    loop = len(prompt) + loop_start(new)
    return Race(
        pd.DataFrame([row]), steps.assign(policy=label, loop=loop), tokens.assign(policy=label)
    )
