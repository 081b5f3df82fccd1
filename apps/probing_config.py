"""Sizes and sources of a probing lab run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LabConfig:
    """Sizes of the lab.

    Attributes:
        n_prompts: CopyDiversity prompts, each completed greedily and at temperature 0.8.
        completion_tokens: budget of each completion.
        sweep_prompts: the first so many prompts serve the sweep of all sites.
        candidates: sites captured on the whole corpus.
        eval_prompts: prompts of each benchmark.
        eval_tokens: budget of each of their completions.
        given_tokens: tokens of natural text and of ConstructedCopy.
        natural_text: WikiText file or hub dataset; the file beside the benchmarks if empty.
        data_dir: folder of the benchmarks; `$SWITCHSD_DATA` if empty.
        seed: of prompts, splits, sampling and intervals.
    """

    n_prompts: int = 600
    completion_tokens: int = 96
    sweep_prompts: int = 140
    candidates: int = 8
    eval_prompts: int = 40
    eval_tokens: int = 128
    given_tokens: int = 60_000
    natural_text: str = ""
    data_dir: str = ""
    seed: int = 0
