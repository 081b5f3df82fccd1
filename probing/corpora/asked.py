"""A benchmark's prompts as token ids: second turns follow the model's own first answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from ...data.benchmarks import load_benchmark
from ...data.chat import chat_ids
from ...errors import SwitchSDError
from ...progress import Progress
from ...stages import kept
from ..lens import Lens
from .completions import complete


def benchmark_prompts(
    lens: Lens,
    name: str,
    *,
    limit: int | None = None,
    most_tokens: int | None = None,
    data_dir: Path | None = None,
    answer_tokens: int = 128,
) -> dict[str, list[int]]:
    """The prompts of a benchmark in the model's chat format.

    Where a prompt has several turns, the model answers the first greedily and the second is what
    is asked.

    Args:
        lens: the target.
        name: of the benchmark, or a JSONL file (`data.load_benchmark`).
        limit: the first so many of its prompts; None: all.
        most_tokens: prompts whose first turn is longer are passed over.
        data_dir: where the benchmark files are.
        answer_tokens: budget of a first answer.

    Returns:
        prompt_id → ids, in the benchmark's order.

    Raises:
        SwitchSDError: no such benchmark, no prompts, or a first turn that fills the context.
    """
    bench = load_benchmark(name, data_dir=data_dir, limit=limit if most_tokens is None else None)
    found, second = dict[str, list[int]](), dict[str, list[str]]()
    for prompt_id, turns in zip(map(str, bench["prompt_id"]), bench["turns"], strict=True):
        ids = chat_ids(lens.tokenizer, turns[:1])
        if len(found) == limit:
            break
        if most_tokens is None or len(ids) <= most_tokens:
            found[prompt_id] = ids
            if len(turns) > 1:
                second[prompt_id] = turns[:2]
    if not found:
        raise SwitchSDError(f"{name} has no prompt of at most {most_tokens} tokens")
    asked = list(second)
    if not asked:
        return found
    first = [found[prompt_id] for prompt_id in asked]
    for indices, answers in complete(lens, first, max_new_tokens=answer_tokens):
        for index, answer in zip(indices, answers, strict=True):
            said = lens.tokenizer.decode(answer, skip_special_tokens=True)
            found[asked[index]] = chat_ids(lens.tokenizer, second[asked[index]], [said])
    return found


def asked_prompts(
    folder: Path,
    lens: Lens,
    names: Sequence[str],
    *,
    limit: int | None = None,
    data_dir: Path | None = None,
) -> pd.DataFrame:
    """The prompts of several benchmarks, made once and kept: a first answer takes time and may not
    come out alike twice.

    Args:
        folder: where they are kept; a later call reads them from there.
        lens: the target.
        names: of the benchmarks, or JSONL files.
        limit: the first so many of each; None: all.
        data_dir: where the benchmark files are.

    Returns:
        prompt_id, set, ids.

    Raises:
        SwitchSDError: what `benchmark_prompts` raises, a prompt that leaves no room in the context,
            or two prompts with one id.
    """
    asked = []
    for place, name in enumerate(names):
        ask = partial(_asked, lens, name, limit=limit, data_dir=data_dir)
        asked.append(kept(folder / f"{place}.parquet", ask))
    prompts = pd.concat(asked, ignore_index=True)
    _check(prompts, lens)
    return prompts


def _asked(lens: Lens, name: str, *, limit: int | None, data_dir: Path | None) -> pd.DataFrame:
    found = benchmark_prompts(lens, name, limit=limit, data_dir=data_dir)
    return pd.DataFrame([{"prompt_id": key, "set": name, "ids": ids} for key, ids in found.items()])


def one_by_one(
    prompts: pd.DataFrame, progress: Progress, about: str = ""
) -> Iterator[tuple[int, str, str, list[int]]]:
    """Number, prompt_id, set and ids of each prompt; `progress` counts those of each set.

    Args:
        prompts: prompt_id, set, ids.
        progress: told before and after each.
        about: said behind the set's name.
    """
    totals, done = prompts["set"].value_counts(), Counter[str]()
    for number, (prompt_id, name, ids) in enumerate(
        zip(prompts["prompt_id"], prompts["set"], prompts["ids"], strict=True)
    ):
        progress(f"{name}{about}", done[name], int(totals[name]))
        yield number, prompt_id, name, [int(token) for token in ids]
        done[name] += 1
        progress(f"{name}{about}", done[name], int(totals[name]))


def _check(prompts: pd.DataFrame, lens: Lens) -> None:
    twice = prompts["prompt_id"][prompts["prompt_id"].duplicated()]
    if len(twice):
        raise SwitchSDError(
            f"two prompts are called {twice.iloc[0]!r}; run those sets apart from each other"
        )
    long = prompts[prompts["ids"].map(len) >= lens.n_ctx]
    if len(long):
        first = long.iloc[0]
        raise SwitchSDError(
            f"{len(long)} prompts leave no room in the context of {lens.name} ({lens.n_ctx} "
            f"tokens), the first is {first['prompt_id']} with {len(first['ids'])}: shorten them or "
            "leave them out"
        )
