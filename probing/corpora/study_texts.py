"""Evaluation texts for the study of explanations: short prompts of several benchmarks, completed.

Benchmarks are for evaluation: nothing is ranked, fitted or averaged on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ...data.benchmarks import load_benchmark
from ...data.chat import chat_ids
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ..lens import Lens
from .completions import build_corpus


def evaluation_corpus(
    lens: Lens,
    benchmarks: Sequence[str],
    folder: Path,
    *,
    n_prompts: int = 64,
    max_prompt_tokens: int = 200,
    max_new_tokens: int = 64,
    data_dir: Path | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """First turns of the benchmarks, as many of each, with the model's greedy completions.

    Args:
        lens: the target.
        benchmarks: names or files (`data.load_benchmark`).
        folder: where the completions are kept; unfinished work goes on.
        n_prompts: in all; a benchmark with too few short ones leaves its part to the others.
        max_prompt_tokens: longer prompts are passed over.
        max_new_tokens: budget of each completion.
        data_dir: folder of the benchmark files.
        progress: told the number of completions.

    Returns:
        prompt_id, family (the benchmark), temperature, seed, prompt_ids, completion_ids.

    Raises:
        SwitchSDError: no benchmark named, a missing one, or one without a short prompt.
    """
    if not benchmarks:
        raise SwitchSDError("no benchmark named; name at least one, or a JSONL file of prompts")
    if n_prompts < 2:
        raise SwitchSDError(f"{n_prompts} prompts: intervals need at least 2")
    short = [
        short_prompts(lens, name, max_tokens=max_prompt_tokens, data_dir=data_dir)
        for name in benchmarks
    ]
    ranked = pd.concat(
        [frame.assign(nth=range(len(frame)), bench=at) for at, frame in enumerate(short)],
        ignore_index=True,
    ).sort_values(["nth", "bench"], kind="stable")
    chosen = ranked.head(n_prompts).sort_values(["bench", "nth"]).reset_index(drop=True)
    if chosen["prompt_id"].duplicated().any():  # two files may count alike
        chosen["prompt_id"] = chosen["family"] + "/" + chosen["prompt_id"]
    return build_corpus(
        lens,
        chosen[["prompt_id", "family", "turns"]],
        folder,
        max_new_tokens=max_new_tokens,
        progress=progress,
    )


def short_prompts(
    lens: Lens, name: str, *, max_tokens: int, data_dir: Path | None = None
) -> pd.DataFrame:
    """prompt_id, family, turns (the first one only) of a benchmark's prompts that are short enough.

    Raises:
        SwitchSDError: no such benchmark, or none of its prompts is short enough.
    """
    bench = load_benchmark(name, data_dir=data_dir)
    bench = bench.assign(family=Path(name).stem, turns=bench["turns"].map(lambda turns: turns[:1]))
    length = bench["turns"].map(lambda turns: len(chat_ids(lens.tokenizer, turns)))
    kept = bench[length <= max_tokens]
    if kept.empty:
        raise SwitchSDError(
            f"no prompt of {name} has at most {max_tokens} tokens; allow longer ones"
        )
    return kept[["prompt_id", "family", "turns"]].reset_index(drop=True)
