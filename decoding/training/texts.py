"""The texts drafts are trained on: a target's completions, split by shared passages, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...runs import read_parquet

_PASSAGE = 24  # tokens in common that make two prompts one group


def read_texts(file: Path, d_vocab: int) -> pd.DataFrame:
    """Completions as `switchsd draft distill` or `data.build_corpus` writes them.

    Args:
        file: Parquet with prompt_ids and completion_ids, and perhaps temperature.
        d_vocab: the target's vocabulary.

    Returns:
        prompt_ids, completion_ids, temperature (0 where the file has none); without empty
        completions.

    Raises:
        SwitchSDError: no such file, other columns, ids that are none of the target's.
    """
    found = read_parquet(file)
    missing = [name for name in ("prompt_ids", "completion_ids") if name not in found]
    if missing:
        raise SwitchSDError(f"{file} holds no completions: it lacks {' and '.join(missing)}")
    for name in ("prompt_ids", "completion_ids"):
        if not found[name].map(_are_ids).all():
            raise SwitchSDError(f"{file}: {name} has to hold lists of token ids")
    if "temperature" not in found:
        found["temperature"] = 0.0
    full = (found["completion_ids"].map(len) > 0) & (found["prompt_ids"].map(len) > 0)
    texts = found.loc[full, ["prompt_ids", "completion_ids", "temperature"]]
    if texts.empty:
        raise SwitchSDError(f"{file} holds no completions")
    for name in ("prompt_ids", "completion_ids"):
        highest = max(int(np.max(ids)) for ids in texts[name])
        if highest >= d_vocab:
            raise SwitchSDError(
                f"{file}: token {highest} is none of the target's {d_vocab}; these are another "
                "model's completions"
            )
    return texts.reset_index(drop=True)


def _are_ids(value: object) -> bool:
    if not isinstance(value, (np.ndarray, list)):
        return False
    return len(value) == 0 or np.asarray(value).dtype.kind in "iu"


def common_prefix(texts: Sequence[Sequence[int]]) -> int:
    """How many tokens all texts begin with alike (a system prompt)."""
    first = np.asarray(texts[0])
    common = min(map(len, texts))
    for text in texts:
        same = np.asarray(text[:common]) == first[:common]
        common = common if same.all() else int(same.argmin())
    return common


def shared_groups(prompts: Sequence[Sequence[int]]) -> np.ndarray:
    """Number prompts so that those with a passage of 24 tokens in common share a number.

    What all prompts begin with (a system prompt) counts as nothing in common.
    """
    common = common_prefix(prompts)
    group = list(range(len(prompts)))

    def root(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    seen: dict[tuple[int, ...], int] = {}
    for i, prompt in enumerate(prompts):
        own = [int(token) for token in prompt[common:]]
        for start in range(max(1, len(own) - _PASSAGE + 1)):
            other = seen.setdefault(tuple(own[start : start + _PASSAGE]), i)
            group[root(i)] = root(other)
    return np.array([root(i) for i in range(len(prompts))])


def hold_out(texts: pd.DataFrame, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Rows to train on and rows held out, no passage in both.

    Raises:
        SwitchSDError: too few texts to hold any out.
    """
    groups = shared_groups(list(texts["prompt_ids"]))
    order = np.random.default_rng(seed).permutation(np.unique(groups))
    size = pd.Series(groups).value_counts()
    wanted = share * len(texts)
    held: list[int] = []
    for group in order:
        # a group as large as the whole wanted share would be an odd sample of the texts
        if len(held) < wanted and size[group] <= max(1, wanted / 8):
            held += np.flatnonzero(groups == group).tolist()
    train = sorted(set(range(len(texts))) - set(held))
    if not held or not train:
        raise SwitchSDError(
            f"{len(texts)} texts are too few to train on some and hold {share:.0%} out"
        )
    return train, sorted(held)


def token_batches(
    lengths: Sequence[int], rows: Sequence[int], tokens: int, seed: int
) -> list[list[int]]:
    """One pass over `rows` in batches of about `tokens` tokens, padding included.

    Texts of about equal length come together; which ones, and the order, depend on the seed.
    """
    rng = np.random.default_rng(seed)
    noisy = {row: lengths[row] * rng.uniform(0.9, 1.1) for row in rows}
    batches: list[list[int]] = [[]]
    longest = 0
    for row in sorted(rows, key=noisy.__getitem__):
        longest = max(longest, lengths[row])
        if batches[-1] and longest * (len(batches[-1]) + 1) > tokens:
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return [batches[i] for i in rng.permutation(len(batches))]
