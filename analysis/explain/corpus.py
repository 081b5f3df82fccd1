"""Over a corpus: how much of the probe's separation of copy from other tokens each part explains.

Separation is the mean logit on copy tokens minus the mean on the others. A part's separation is the
same difference of its own values, so the parts' separations sum to the whole, and shares to 1.
A share can be negative, or above 1 where others take back: it says what a part adds to the
difference, not what it would do alone.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...intervals import Draws, Statistic, draw, minus, ratio
from ...probing.corpora.token_table import label_table
from ...probing.lens import Lens
from ...progress import Progress, silent
from .attribution import attribute
from .reading import Reading


def labelled_reads(
    corpus: pd.DataFrame, offset: int, *, breaks: Set[int] = frozenset()
) -> pd.DataFrame:
    """Completion tokens with their label and the position the probe answers for them from.

    Args:
        corpus: prompt_id, family, prompt_ids, completion_ids.
        offset: the probe's label offset.
        breaks: special-token ids.

    Returns:
        The columns of `label_table`, and `read` = position − offset.

    Raises:
        SwitchSDError: no completion token, or no copy token, or nothing else.
    """
    table = label_table(corpus, breaks=breaks)
    table = table.assign(read=table["position"] - offset)
    table = table[table["read"] >= 0].reset_index(drop=True)
    if table["copied"].nunique() < 2:
        found = "only copy tokens" if table["copied"].any() else "no copy token"
        raise SwitchSDError(
            f"the {len(corpus)} prompts have {found}: there is nothing to tell apart; use more "
            "prompts, or ones that repeat their context in part"
        )
    return table


def corpus_parts(
    lens: Lens,
    corpus: pd.DataFrame,
    reading: Reading,
    reads: pd.DataFrame,
    *,
    progress: Progress = silent,
) -> pd.DataFrame:
    """`text_parts` of every text that has a labelled token, with its `prompt_id`."""
    tables = []
    rows = reads["row"].unique().tolist()
    for done, row in enumerate(rows):
        progress("attribution", done, len(rows))
        table = text_parts(lens, corpus, reading, reads, row)
        tables.append(table.assign(prompt_id=corpus["prompt_id"].iloc[row]))
    progress("attribution", len(rows), len(rows))
    return pd.concat(tables, ignore_index=True)


def text_parts(
    lens: Lens, corpus: pd.DataFrame, reading: Reading, reads: pd.DataFrame, row: int
) -> pd.DataFrame:
    """Each part's values in one text, summed over copy tokens and over the others.

    Returns:
        `part`, `kind`, `layer`, `index`, `copy_sum`, `other_sum`, and the same in every row:
        `n_copy`, `n_other`, `error` (largest relative error of the text).
    """
    ids = [*corpus["prompt_ids"].iloc[row], *corpus["completion_ids"].iloc[row]]
    mine = reads[reads["row"] == row]
    found = attribute(lens, [int(token) for token in ids], reading, mine["read"].tolist())
    copied = mine["copied"].to_numpy()
    return found.parts.assign(
        copy_sum=found.values[copied].sum(0),
        other_sum=found.values[~copied].sum(0),
        n_copy=int(copied.sum()),
        n_other=int((~copied).sum()),
        error=found.max_relative_error,
    )


def separation_draws(sums: pd.DataFrame, *, seed: int = 0) -> tuple[pd.DataFrame, Draws]:
    """The parts, and each one's separation on all prompts and on each resample of them.

    Args:
        sums: `corpus_parts`; texts of one prompt are resampled together.
        seed: of the resampling.
    """
    parts = sums[["part", "kind", "layer", "index"]].drop_duplicates("part", ignore_index=True)
    prompts = sums["prompt_id"].drop_duplicates().tolist()

    def mean(column: str, count: str) -> Statistic:
        wide = sums.pivot_table(index="prompt_id", columns="part", values=column, aggfunc="sum")
        whole = sums[sums["part"] == parts["part"].iloc[0]].groupby("prompt_id")[count].sum()
        ordered = wide.loc[prompts, parts["part"].tolist()].to_numpy(np.float64)
        return ratio(ordered, whole.loc[prompts].to_numpy())

    separation = minus(mean("copy_sum", "n_copy"), mean("other_sum", "n_other"))
    return parts, draw(separation, len(prompts), seed=seed)


def separation_table(sums: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """One row a part: `separation` in log-odds and its `share` of the whole, with intervals.

    Returns:
        `part`, `kind`, `layer`, `index`, `separation`, `separation_low`, `separation_high`,
        `share`, `share_low`, `share_high`.
    """
    parts, draws = separation_draws(sums, seed=seed)
    return _with_shares(parts, draws)


def kinds_table(sums: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """The same, summed over each kind: heads against MLPs, embedding and biases."""
    parts, draws = separation_draws(sums, seed=seed)
    kinds = parts["kind"].drop_duplicates().tolist()
    member = np.stack([(parts["kind"] == kind).to_numpy(np.float64) for kind in kinds], axis=1)
    summed = Draws(draws.value @ member, draws.drawn @ member)
    return _with_shares(pd.DataFrame({"kind": kinds, "parts": member.sum(0).astype(int)}), summed)


def _with_shares(names: pd.DataFrame, draws: Draws) -> pd.DataFrame:
    share = draws.shares()
    low, high = draws.interval()
    share_low, share_high = share.interval()
    return names.assign(
        separation=draws.value, separation_low=low, separation_high=high,
        share=share.value, share_low=share_low, share_high=share_high,
    )  # fmt: skip
