"""transformers' own decoding under the same clock: greedy, prompt lookup and assisted generation.

The target's forwards are watched through hooks. How many tokens the cache holds before each of them
says where a step began and what the last one had kept. The first forward is the prefill: what it
emits (one token, or also the accepted ones of a draft made before it) is no decoding. Everything
between two forwards is drafting; transformers does not say more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from ...decoding.step.clock import now
from ...probing.lens import Lens

TRANSFORMERS = "transformers"
"""Label of plain greedy `generate`: the text everything else has to give."""

LOOKUP_TOKENS, LOOKUP_NGRAM = 10, 2
"""`prompt_lookup_num_tokens` and `max_matching_ngram_size`: those of the policy pld."""


@dataclass(frozen=True)
class Forward:
    """One forward of the target: tokens in the cache before it, tokens it took, and when."""

    past: int
    taken: int
    begin: float
    end: float


@dataclass(frozen=True)
class ReferenceRun:
    """A text as transformers made it.

    Attributes:
        ids: the new tokens.
        steps: one row a forward after the first, with the columns of `Watched.steps` that apply.
        prefill_s: until the end of the first forward.
    """

    ids: list[int]
    steps: pd.DataFrame
    prefill_s: float


def references(draft: Lens | None) -> dict[str, dict[str, Any]]:
    """transformers' ways to decode by label, with the arguments that `generate` gets.

    Assisted generation takes the draft model as it is and transformers' own defaults: up to 20
    tokens a draft, ended early where the draft is unsure.
    """
    found: dict[str, dict[str, Any]] = {
        TRANSFORMERS: {},
        f"{TRANSFORMERS}-lookup": {
            "prompt_lookup_num_tokens": LOOKUP_TOKENS,
            "max_matching_ngram_size": LOOKUP_NGRAM,
        },
    }
    if draft is not None:
        found[f"{TRANSFORMERS}-assisted"] = {"assistant_model": draft.model}
    return found


def run_reference(
    lens: Lens, prompt: Sequence[int], arguments: dict[str, Any], *, max_new_tokens: int
) -> ReferenceRun:
    """Decode a prompt greedily with transformers.

    Args:
        lens: the target.
        prompt: token ids.
        arguments: of `generate`, as `references` gives them.
        max_new_tokens: budget.
    """
    forwards: list[Forward] = []
    started: list[tuple[int, int, float]] = []

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cache, ids = kwargs.get("past_key_values"), kwargs.get("input_ids", *args[:1])
        past = int(cache.get_seq_length()) if cache is not None else 0
        started.append((past, int(ids.shape[1]), now(lens.device)))

    def after(*_: Any) -> None:
        forwards.append(Forward(*started[-1], now(lens.device)))

    ids = torch.tensor([list(prompt)], device=lens.device)
    hooks = [
        lens.model.register_forward_pre_hook(before, with_kwargs=True),
        lens.model.register_forward_hook(after),
    ]
    begin = now(lens.device)
    try:
        out = lens.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=lens.eos_ids[0] if lens.eos_ids else 0,
            **arguments,
        )
    finally:
        for hook in hooks:
            hook.remove()
    end = now(lens.device)
    new = out[0, len(prompt) :].tolist()
    path = "copy" if "prompt_lookup_num_tokens" in arguments else "neural"
    steps = forward_steps(forwards, len(prompt), len(new), end, path)
    return ReferenceRun(new, steps, forwards[0].end - begin)


def forward_steps(
    forwards: Sequence[Forward], n_prompt: int, n_new: int, end: float, path: str
) -> pd.DataFrame:
    """Forwards after the first as steps: position, path, proposed, accepted, emitted, times.

    Args:
        forwards: of the target, in order.
        n_prompt: tokens of the prompt.
        n_new: tokens of the whole text.
        end: when the text was finished.
        path: of the steps that verified a draft.
    """
    total = n_prompt + n_new
    rows = []
    for number, (last, this) in enumerate(itertools.pairwise(forwards)):
        following = forwards[number + 2 :]
        position = this.past + 1  # the cache lacks the newest token
        emitted = (following[0].past + 1 if following else total) - position
        rest = 0.0 if following else end - this.end
        rows.append(
            {
                "step": number,
                "position": position,
                "path": "plain" if this.taken == 1 else path,
                "proposed": this.taken - 1,
                "accepted": min(emitted - 1, this.taken - 1),
                "emitted": emitted,
                "draft_ms": 1e3 * (this.begin - last.end),
                "verify_ms": 1e3 * (this.end - this.begin),
                "rest_ms": 1e3 * rest,
                "ms": 1e3 * (this.end - last.end + rest),
            }
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = [
    *("step", "position", "path", "proposed", "accepted", "emitted"),
    *("draft_ms", "verify_ms", "rest_ms", "ms"),
]
