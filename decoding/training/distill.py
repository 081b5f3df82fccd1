"""The texts drafts are trained on, from the target itself: its own answers to prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ...data.chat import chat_ids
from ...errors import SwitchSDError
from ...probing.corpora.completions import build_corpus
from ...probing.lens import Lens
from ...progress import Progress, silent

_LONGER = 1.1  # tokens of an answer when it is read back as text, at most so many times as many
_OWN = 0.8  # what rounding and a repetition penalty leave of a model's own greedy texts is above


def distill(
    lens: Lens,
    prompts: pd.DataFrame,
    folder: Path,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.8,
    greedy_share: float = 0.6,
    seed: int = 0,
    batch_size: int = 16,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Answer each prompt once: some greedily, the others sampled. Unfinished work goes on.

    Several turns are answered one after the other; the last answer is the completion, the ones
    before are part of its prompt.

    Args:
        lens: the target.
        prompts: columns prompt_id, category, turns.
        folder: of what is finished, batch by batch.
        max_new_tokens: budget of each answer.
        temperature: of the sampled ones.
        greedy_share: of the prompts; which ones depends on the seed.
        seed: of that choice and of the sampling.
        batch_size: prompts a batch at most.
        progress: told the number of completions.

    Returns:
        id, domain, prompt_ids, completion_ids, temperature (0: greedy), in the prompts' order.

    Raises:
        SwitchSDError: settings out of range, no prompts, or another's work in `folder`.
    """
    if not 0 <= greedy_share <= 1 or temperature < 0 or max_new_tokens < 1 or batch_size < 1:
        raise SwitchSDError(
            f"greedy share {greedy_share:g}, temperature {temperature:g}, max_new_tokens "
            f"{max_new_tokens}, batch size {batch_size}: a share lies in 0-1, temperatures are not "
            "negative, numbers at least 1"
        )
    if temperature == 0:
        greedy_share = 1.0
    order = np.random.default_rng(seed).permutation(len(prompts))
    greedy = np.sort(order[: round(greedy_share * len(prompts))])
    sampled = np.setdiff1d(order, greedy)
    done = 0

    def counted(what: str, now: int, _: int) -> None:
        progress(what, done + now, len(prompts))

    parts = []
    for name, rows, heat in (("greedy", greedy, 0.0), ("sampled", sampled, temperature)):
        if len(rows):
            corpus = build_corpus(
                lens,
                prompts.iloc[rows].reset_index(drop=True),
                folder / name,
                max_new_tokens=max_new_tokens,
                temperatures=(heat,),
                seed=seed,
                batch_size=batch_size,
                progress=counted,
            )
            parts.append(corpus)
            done += len(rows)
    if not parts:
        raise SwitchSDError("no prompts to complete")
    found = pd.concat(parts).set_index("prompt_id").loc[prompts["prompt_id"]].reset_index()
    found = found.rename(columns={"prompt_id": "id", "family": "domain"})
    return found[["id", "domain", "prompt_ids", "completion_ids", "temperature"]]


def fitting(lens: Lens, prompts: pd.DataFrame, max_new_tokens: int) -> pd.DataFrame:
    """The prompts whose turns and answers fit the model's context.

    Raises:
        SwitchSDError: none does.
    """

    def fits(turns: Sequence[str]) -> bool:
        answers = ["-"] * (len(turns) - 1)
        given = len(chat_ids(lens.tokenizer, list(turns), answers))
        earlier = math.ceil(_LONGER * max_new_tokens) * len(answers)
        return given + earlier + max_new_tokens <= lens.n_ctx

    kept = prompts[prompts["turns"].map(fits)].reset_index(drop=True)
    if kept.empty:
        raise SwitchSDError(
            f"no prompt leaves room for {max_new_tokens} new tokens in the context of {lens.name} "
            f"({lens.n_ctx} tokens): ask for fewer, or give shorter prompts"
        )
    return kept


@torch.no_grad()
def check_own(lens: Lens, texts: pd.DataFrame, rows: Sequence[int]) -> float:
    """Share of these greedy completions' tokens that the model itself ranks first.

    Raises:
        SwitchSDError: so few that the texts are another model's.
    """
    prompts, completions = texts["prompt_ids"].tolist(), texts["completion_ids"].tolist()
    own = count = 0
    for row in rows:
        prompt, completion = prompts[row], completions[row]
        ids = torch.tensor([[*prompt, *completion]], device=lens.device)
        logits = lens.forward(ids).logits
        assert logits is not None
        first = logits[0, len(prompt) - 1 : -1].argmax(-1)
        own += int((first == ids[0, len(prompt) :]).sum())
        count += len(completion)
    share = own / max(count, 1)
    if share < _OWN:
        raise SwitchSDError(
            f"only {share:.0%} of the texts' greedy tokens are what {lens.name} itself would "
            "write: they are another model's; make its own with `switchsd draft distill`"
        )
    return share
