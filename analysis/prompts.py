"""A benchmark's prompts as token ids: second turns follow the model's own first answers."""

from __future__ import annotations

from pathlib import Path

from ..data.benchmarks import load_benchmark
from ..data.chat import chat_ids
from ..probing.completions import complete
from ..probing.lens import Lens


def benchmark_prompts(
    lens: Lens,
    name: str,
    *,
    limit: int | None = None,
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
        data_dir: where the benchmark files are.
        answer_tokens: budget of a first answer.

    Returns:
        prompt_id → ids, in the benchmark's order.

    Raises:
        SwitchSDError: no such benchmark, no prompts, or a first turn that fills the context.
    """
    bench = load_benchmark(name, data_dir=data_dir, limit=limit)
    found = {
        str(prompt_id): chat_ids(lens.tokenizer, turns[:1])
        for prompt_id, turns in zip(bench["prompt_id"], bench["turns"], strict=True)
    }
    second = {
        str(prompt_id): turns[:2]
        for prompt_id, turns in zip(bench["prompt_id"], bench["turns"], strict=True)
        if len(turns) > 1
    }
    asked = list(second)
    if not asked:
        return found
    first = [found[prompt_id] for prompt_id in asked]
    for indices, answers in complete(lens, first, max_new_tokens=answer_tokens):
        for index, answer in zip(indices, answers, strict=True):
            said = lens.tokenizer.decode(answer, skip_special_tokens=True)
            found[asked[index]] = chat_ids(lens.tokenizer, second[asked[index]], [said])
    return found
