"""The model's own completions of a set of prompts, in batches, resumable, as a corpus table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from ...data.chat import chat_ids
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ...runs import read_json, read_parquet, write_json, write_parquet
from ..lens import Lens

_BATCH_TOKENS = 8192  # prompt tokens a batch holds at most, padding included


def complete(
    lens: Lens,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 16,
) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Complete prompts of about equal length together.

    Args:
        lens: the model; its `generate` runs the batch, left-padded under an attention mask.
        prompts: token ids.
        max_new_tokens: budget of each.
        temperature: 0 is greedy.
        seed: of the sampling; a batch's text depends on it and on the batch.
        batch_size: prompts a batch at most.

    Yields:
        (indices into `prompts`, their completions, each up to and with its end-of-text id).

    Raises:
        SwitchSDError: an empty prompt, or one that leaves no room in the context.
    """
    for batch in _batches(lens, prompts, max_new_tokens, batch_size):
        yield batch, _complete_batch(lens, prompts, batch, max_new_tokens, temperature, seed)


def build_corpus(
    lens: Lens,
    prompts: pd.DataFrame,
    folder: Path,
    *,
    max_new_tokens: int = 128,
    temperatures: Sequence[float] = (0.0,),
    seed: int = 0,
    batch_size: int = 16,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Complete `prompts` with the model and keep the result in `folder/corpus.parquet`.

    Several turns are answered one after the other, each on the model's own earlier answers; the
    row holds the last answer. Unfinished work goes on where it stopped.

    Args:
        lens: the target model.
        prompts: columns prompt_id, family (or category), turns.
        folder: where the corpus goes; another corpus there is refused, not replaced.
        max_new_tokens: budget of each completion.
        temperatures: one completion of each prompt at each.
        seed: of the sampling.
        batch_size: prompts a batch at most.
        progress: told the number of completions.

    Returns:
        prompt_id, family, temperature, seed, prompt_ids, completion_ids.

    Raises:
        SwitchSDError: no prompts, or another corpus in `folder`.
    """
    if prompts.empty:
        raise SwitchSDError("no prompts to complete")
    key = {
        "fingerprint": lens.fingerprint,
        "dtype": lens.dtype,
        "prompts": _digest(
            [[p, list(t)] for p, t in zip(prompts["prompt_id"], prompts["turns"], strict=True)]
        ),
        "max_new_tokens": max_new_tokens,
        "temperatures": list(temperatures),
        "seed": seed,
    }
    final = folder / "corpus.parquet"
    _claim(folder, key)
    if final.is_file():
        return read_parquet(final)
    total, done = len(prompts) * len(temperatures), 0
    finished: list[pd.DataFrame] = []
    for temperature in temperatures:
        answers: dict[str, list[list[int]]] = {str(p): [] for p in prompts["prompt_id"]}
        for turn in range(int(prompts["turns"].map(len).max())):
            due = prompts[prompts["turns"].map(len) > turn].reset_index(drop=True)
            texts = [
                chat_ids(
                    lens.tokenizer,
                    list(turns[: turn + 1]),
                    [lens.tokenizer.decode(a, skip_special_tokens=True) for a in answers[prompt]],
                )
                for prompt, turns in zip(due["prompt_id"], due["turns"], strict=True)
            ]
            part = folder / "parts" / f"t{temperature:g}-turn{turn}"
            for indices, completions in _resumable(
                lens, texts, part, max_new_tokens, temperature, seed, batch_size
            ):
                for i, ids in zip(indices, completions, strict=True):
                    row = due.iloc[i]
                    answers[row["prompt_id"]].append(ids)
                    if len(row["turns"]) == turn + 1:
                        finished.append(_row(row, temperature, seed, texts[i], ids))
                        done += 1
                progress("completions", done, total)
    corpus = pd.concat(finished, ignore_index=True)
    order = {prompt: place for place, prompt in enumerate(prompts["prompt_id"])}
    corpus = corpus.sort_values(
        ["temperature", "prompt_id"], key=lambda c: c.map(order) if c.name == "prompt_id" else c
    ).reset_index(drop=True)
    write_parquet(final, corpus)
    return corpus


def _resumable(
    lens: Lens,
    texts: list[list[int]],
    part: Path,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    batch_size: int,
) -> Iterator[tuple[list[int], list[list[int]]]]:
    """`complete`, with every batch kept on disk and read back from there the next time."""
    for number, batch in enumerate(_batches(lens, texts, max_new_tokens, batch_size)):
        file = part / f"{number:06d}.parquet"
        if not file.is_file():
            answers = _complete_batch(lens, texts, batch, max_new_tokens, temperature, seed)
            write_parquet(file, pd.DataFrame({"index": batch, "ids": answers}))
        saved = read_parquet(file)
        yield saved["index"].tolist(), [list(ids) for ids in saved["ids"]]


def _complete_batch(
    lens: Lens,
    prompts: Sequence[Sequence[int]],
    batch: list[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[list[int]]:
    longest = max(len(prompts[i]) for i in batch)
    pad = lens.eos_ids[0] if lens.eos_ids else 0
    ids = torch.full((len(batch), longest), pad)
    mask = torch.zeros((len(batch), longest), dtype=torch.long)
    for row, i in enumerate(batch):
        ids[row, longest - len(prompts[i]) :] = torch.tensor(list(prompts[i]))
        mask[row, longest - len(prompts[i]) :] = 1
    torch.manual_seed(seed + batch[0])  # transformers' generate draws from the global generator
    choice = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    out = lens.model.generate(
        ids.to(lens.device),
        attention_mask=mask.to(lens.device),
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
        **(choice if temperature > 0 else {"do_sample": False}),
    )
    return [_until_eos(row, lens.eos_ids) for row in out[:, longest:].tolist()]


def _row(
    row: pd.Series, temperature: float, seed: int, prompt: list[int], completion: list[int]
) -> pd.DataFrame:
    family = row["family"] if "family" in row else row.get("category", "")
    return pd.DataFrame(
        [
            {
                "prompt_id": row["prompt_id"],
                "family": family,
                "temperature": temperature,
                "seed": seed,
                "prompt_ids": prompt,
                "completion_ids": completion,
            }
        ]
    )


def _batches(
    lens: Lens, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int
) -> Iterator[list[int]]:
    """Prompts of about equal length together, short ones first; the same batches every time."""
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise SwitchSDError(f"prompt {i} is empty: give at least one token")
        if len(prompt) + max_new_tokens > lens.n_ctx:
            raise SwitchSDError(
                f"prompt {i} has {len(prompt)} tokens; with {max_new_tokens} new ones it does not "
                f"fit the context of {lens.n_ctx}"
            )
    batch: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        full = len(batch) == batch_size or (len(batch) + 1) * len(prompts[i]) > _BATCH_TOKENS
        if batch and full:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _until_eos(ids: list[int], eos_ids: Sequence[int]) -> list[int]:
    ends = [place for place, token in enumerate(ids) if token in eos_ids]
    return ids[: ends[0] + 1] if ends else ids


def _claim(folder: Path, key: dict[str, object]) -> None:
    manifest = folder / "manifest.json"
    if manifest.is_file():
        if read_json(manifest) != json.loads(json.dumps(key)):
            raise SwitchSDError(f"{folder} holds another corpus; choose another folder")
    elif folder.exists() and any(folder.iterdir()):
        raise SwitchSDError(f"{folder} holds something else; choose an empty folder")
    else:
        write_json(manifest, key)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
