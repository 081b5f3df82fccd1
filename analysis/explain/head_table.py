"""One row a head: every score with its interval over prompts and its two baselines."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...intervals import Draws, draw, ratio
from ...probing.lens import Lens
from ...progress import Progress, silent
from .attention import ON_REPEATS, ON_TEXT, random_repeats, real_targets, score_repeats, score_text
from .copying import copying_scores

INDUCTION = "prefix_matching"
"""The score heads are ranked by."""


def head_scores(
    lens: Lens,
    corpus: pd.DataFrame,
    *,
    n_repeats: int = 16,
    n: int = 3,
    seed: int = 0,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Every head score of a model.

    Args:
        lens: the model, on the bridge.
        corpus: prompt_id, prompt_ids, completion_ids: the real texts.
        n_repeats: texts of random repeats.
        n: tokens that have to match for the copy path to offer a candidate.
        seed: of random repeats, sampled tokens and resampling.
        progress: told the number of texts.

    Returns:
        See `head_table`, with `copying_scores`' columns.

    Raises:
        SwitchSDError: the live backend, fewer than two texts, a text beyond the context.
    """
    sums = [score_repeats(lens, random_repeats(lens, n_repeats, seed=seed))]
    for at in range(len(corpus)):
        progress("head scores", at, len(corpus))
        row = score_row(lens, corpus, at, n=n)
        sums.append(row.assign(prompt_id=corpus["prompt_id"].iloc[at]))
    progress("head scores", len(corpus), len(corpus))
    table = head_table(pd.concat(sums, ignore_index=True), seed=seed)
    return table.merge(copying_scores(lens, seed=seed, progress=progress), on=["layer", "head"])


def score_row(lens: Lens, corpus: pd.DataFrame, at: int, *, n: int = 3) -> pd.DataFrame:
    """`head_runs.score_text` of one text of a corpus; the next text gives the shuffled targets."""

    def targets(row: pd.Series) -> tuple[list[int], dict[str, np.ndarray]]:
        prompt = [int(token) for token in row["prompt_ids"]]
        ids = [*prompt, *(int(token) for token in row["completion_ids"])]
        return ids, real_targets(ids, len(prompt), n=n)

    ids, mine = targets(corpus.iloc[at])
    others = targets(corpus.iloc[(at + 1) % len(corpus)])[1] if len(corpus) > 1 else None
    return score_text(lens, ids, mine, others)


def score_draws(sums: pd.DataFrame, score: str, *, seed: int = 0) -> Draws:
    """A score of every head (in order of layer and head) with its resampled values.

    Raises:
        SwitchSDError: no query anywhere has a target of this score.
    """
    mass, counts = _by_prompt(sums, score, "mass", "queries")
    if not counts.sum():
        raise SwitchSDError(f"no token in the texts has a target for {score}; use other texts")
    return draw(ratio(mass, counts), len(counts), seed=seed)


def head_table(sums: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """From sums over texts to one row a head.

    Args:
        sums: `head_runs.score_text` of every text, with its `prompt_id`; texts of one prompt are
            resampled together.
        seed: of the resampling.

    Returns:
        `layer`, `head` and for each score `<score>`, `<score>_low`, `<score>_high`,
        `<score>_uniform`, `<score>_shuffled`, `<score>_queries`. A score that no text has a target
        for is NaN.
    """
    heads = sums[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    table = heads.reset_index(drop=True)
    for score in (*ON_REPEATS, *ON_TEXT):
        columns = (score, f"{score}_low", f"{score}_high", f"{score}_uniform", f"{score}_shuffled")
        counts = np.zeros(0)
        if (sums["score"] == score).any():
            counts = _by_prompt(sums, score, "mass", "queries")[1]
        if not counts.sum():
            table[list(columns)] = np.nan
        else:
            draws = score_draws(sums, score, seed=seed)
            table[columns[0]] = draws.value
            table[columns[1]], table[columns[2]] = draws.interval()
            table[columns[3]] = (
                _by_prompt(sums, score, "uniform", "queries")[0].sum(0) / counts.sum()
            )
            table[columns[4]] = _shuffled(sums, score)
        table[f"{score}_queries"] = int(counts.sum())
    return table


def _shuffled(sums: pd.DataFrame, score: str) -> np.ndarray | float:
    mass, counts = _by_prompt(sums, score, "shuffled", "shuffled_queries")
    return mass.sum(0) / counts.sum() if counts.sum() else np.nan


def _by_prompt(
    sums: pd.DataFrame, score: str, column: str, count: str
) -> tuple[np.ndarray, np.ndarray]:
    """[prompt, head] of a column, and how many queries each prompt's texts have."""
    rows = sums[sums["score"] == score]
    wide = rows.pivot_table(
        index="prompt_id", columns=["layer", "head"], values=column, aggfunc="sum"
    ).sort_index(axis=1)
    # every head of a text has the same queries
    one = rows[(rows["layer"] == rows["layer"].iloc[0]) & (rows["head"] == rows["head"].iloc[0])]
    counts = one.groupby("prompt_id")[count].sum()
    return wide.to_numpy(np.float64), counts.loc[wide.index].to_numpy(np.float64)
