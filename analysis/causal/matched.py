"""Intent or surface? Positions that look the same to the eye, told apart by what the model does.

Where the context offers a copy, positions with equal match length, equal class of the last token
and equal number of earlier occurrences of the last three tokens form a stratum. Within it the three
say nothing, so what still ranks positions where the model goes on to copy (three or more tokens)
above those where it does not is something else. Only pairs of the same stratum count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...errors import SwitchSDError
from ...intervals import auroc, draw, each, interval, minus
from ...probing.corpora.partition import assign_parts, parts_of
from ...probing.corpora.surface import TOKEN_CLASSES
from ...probing.lens import Lens
from ...probing.training.families import LinearProbe
from ...probing.training.fitting import fit_columns
from ...progress import Progress, silent
from ..explain.attribution import attribute
from ..explain.reading import Reading
from .copy_texts import CopyTexts

_REPETITIONS = "log_count_3"


@dataclass(frozen=True)
class Matched:
    """Positions where the context offers a copy, with the stratum of each.

    Attributes:
        place: rows of `texts.tokens`.
        prompt: number of each one's prompt.
        goes_on: whether the model goes on to copy three or more tokens.
        stratum: number of each one's stratum.
        n_prompts: of the texts.
    """

    place: Int[np.ndarray, " position"]
    prompt: Int[np.ndarray, " position"]
    goes_on: Bool[np.ndarray, " position"]
    stratum: Int[np.ndarray, " position"]
    n_prompts: int

    @property
    def mixed(self) -> Bool[np.ndarray, " position"]:
        """Positions of strata that hold both kinds: those that can be compared."""
        size = np.bincount(self.stratum)
        true = np.bincount(self.stratum, weights=self.goes_on)
        return ((true > 0) & (true < size))[self.stratum]

    @property
    def n_pairs(self) -> int:
        """Pairs of positions that are compared."""
        size = np.bincount(self.stratum)
        true = np.bincount(self.stratum, weights=self.goes_on)
        return int(true @ (size - true))

    def strata(self, texts: CopyTexts) -> pd.DataFrame:
        """stratum, match_length, token_class, repetitions, goes_on, does_not: the mixed ones."""
        rows = self.mixed
        keys = _keys(texts, self.place)[rows].assign(
            stratum=self.stratum[rows], goes_on=self.goes_on[rows]
        )
        counted = keys.groupby(["stratum", "match_length", "token_class", "repetitions"])
        table = counted["goes_on"].agg(goes_on="sum", n="size").reset_index()
        return table.assign(does_not=table.pop("n") - table["goes_on"])


def matched_positions(texts: CopyTexts, *, loops: bool = False) -> Matched:
    """Group the positions that offer a copy.

    Args:
        texts: evaluation texts.
        loops: whether positions inside loops count too.

    Raises:
        SwitchSDError: no stratum has both positions where the model goes on and others.
    """
    keep = texts.offered
    if not loops:
        keep = keep & ~texts.tokens["in_loop"].to_numpy()
    place = np.flatnonzero(keep)
    keys = _keys(texts, place)
    stratum = keys.groupby(list(keys.columns)).ngroup().to_numpy()
    found = Matched(
        place,
        texts.prompt_of(texts.tokens["row"].to_numpy()[place]),
        texts.goes_on[place],
        stratum,
        texts.n_prompts,
    )
    if not found.n_pairs:
        raise SwitchSDError(
            "no two positions look the same while the model copies at one of them only; use more "
            "prompts"
        )
    return found


def matched_study(
    matched: Matched, scores: Mapping[str, Float[np.ndarray, " position"]], *, seed: int = 0
) -> pd.DataFrame:
    """How well each score tells the two kinds apart, over all positions and within strata.

    Args:
        matched: of `matched_positions`.
        scores: name → one number a position; the first is what others are held against.
        seed: of the resampling over prompts.

    Returns:
        score, n_positions (in mixed strata), n_strata, n_pairs, `auroc` (all positions),
        `auroc_within`, `first_gain` (the first score's `auroc_within` less this one's), each with
        `_low` and `_high`.
    """
    about = {
        "n_positions": int(matched.mixed.sum()),
        "n_strata": len(np.unique(matched.stratum[matched.mixed])),
        "n_pairs": matched.n_pairs,
    }
    rows: list[dict[str, Any]] = []
    for name, score in scores.items():
        overall = auroc(matched.prompt, matched.goes_on, score)
        within = auroc(matched.prompt, matched.goes_on, score, matched.stratum)
        if not rows:
            first = within
        row = {"score": name, **about}
        for column, statistic in (
            ("auroc", overall),
            ("auroc_within", within),
            ("first_gain", minus(first, within)),
        ):
            row |= interval(statistic, matched.n_prompts, seed=seed).columns(column)
        rows.append(row)
    return pd.DataFrame(rows)


def surface_score(train: CopyTexts, *, seed: int = 0) -> LinearProbe:
    """Logistic regression of "goes on to copy" on the surface features of training text.

    Raises:
        SwitchSDError: too few prompts to choose its regularisation on.
    """
    parts = assign_parts(train.corpus["prompt_id"], train.corpus["family"], seed=seed)
    part = parts_of(train.tokens["prompt_id"], parts)
    fit, choose = train.offered & (part != "valid"), train.offered & (part == "valid")
    y, X = train.goes_on, train.surface
    return fit_columns(X[fit], y[fit], (X[choose], y[choose]))


def _keys(texts: CopyTexts, place: Int[np.ndarray, " position"]) -> pd.DataFrame:
    tokens = texts.tokens.iloc[place]
    repetitions = np.rint(np.expm1(tokens[_REPETITIONS].to_numpy(float))).astype(int)
    kind = tokens[list(TOKEN_CLASSES)].to_numpy().argmax(1)
    return pd.DataFrame(
        {
            "match_length": tokens["match_length"].to_numpy().astype(int),
            "token_class": np.array(TOKEN_CLASSES)[kind],
            "repetitions": repetitions,
        }
    )


def matched_parts(
    matched: Matched,
    parts: pd.DataFrame,
    values: Float[np.ndarray, "position part"],
    *,
    n_boot: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Which parts of the probe's logit tell the two kinds apart within strata.

    Args:
        matched: of `matched_positions`.
        parts: part, kind, layer, index.
        values: what each part adds to the logit at each position.
        n_boot: resamples.
        seed: of the resampling over prompts.

    Returns:
        `parts` with `difference` (of means within strata, weighted by pairs), `share` (of the
        whole logit's; they sum to 1), each with `_low` and `_high`, and `auroc_within`.
    """
    differences = each(partial(_differences, matched, values))
    difference = draw(differences, matched.n_prompts, n_boot=n_boot, seed=seed, least=1)
    table = parts.reset_index(drop=True)
    for name, found in (("difference", difference), ("share", difference.shares())):
        low, high = found.interval()
        table = table.assign(**{name: found.value, f"{name}_low": low, f"{name}_high": high})
    ones = np.ones(matched.n_prompts, np.int64)
    aurocs = [
        float(auroc(matched.prompt, matched.goes_on, column, matched.stratum)(ones))
        for column in values.T
    ]
    return table.assign(auroc_within=aurocs)


def by_kind(
    parts: pd.DataFrame, values: Float[np.ndarray, "position part"]
) -> tuple[pd.DataFrame, Float[np.ndarray, "position kind"]]:
    """Parts and values summed over all parts of a kind, as `matched_parts` takes them."""
    kinds = parts["kind"].unique()
    summed = [values[:, (parts["kind"] == kind).to_numpy()].sum(1) for kind in kinds]
    return pd.DataFrame({"kind": kinds}), np.stack(summed, axis=1)


def logit_parts(
    lens: Lens,
    texts: CopyTexts,
    matched: Matched,
    reading: Reading,
    offset: int,
    *,
    progress: Progress = silent,
) -> tuple[pd.DataFrame, Float[np.ndarray, "position part"]]:
    """The exact parts of the probe's logit at every position of `matched`.

    Args:
        lens: the target.
        texts: the texts.
        matched: which positions.
        reading: the probe.
        offset: its label offset.
        progress: told the number of texts.

    Raises:
        SwitchSDError: a site whose logit is no sum of parts.
    """
    row = texts.tokens["row"].to_numpy()[matched.place]
    position = texts.tokens["position"].to_numpy(np.int64)[matched.place] - offset
    values: np.ndarray | None = None
    parts = pd.DataFrame()
    for done, text in enumerate(np.unique(row).tolist()):
        progress("matched study", done, len(np.unique(row)))
        mine = np.flatnonzero(row == text)
        found = attribute(lens, texts.ids(text), reading, position[mine].tolist())
        if values is None:
            parts, values = found.parts, np.empty((len(row), found.values.shape[1]))
        values[mine] = found.values
    assert values is not None  # a stratum has positions
    progress("matched study", len(np.unique(row)), len(np.unique(row)))
    return parts, values


def _differences(
    matched: Matched, values: Float[np.ndarray, "position part"], counts: Int[np.ndarray, " prompt"]
) -> Float[np.ndarray, " part"]:
    """Σ over pairs of a stratum (value where it goes on − where not) / pairs, a part each."""
    weight = counts[matched.prompt].astype(float)
    true = np.bincount(matched.stratum, weights=weight * matched.goes_on)
    false = np.bincount(matched.stratum, weights=weight * ~matched.goes_on)
    facing = np.where(matched.goes_on, false[matched.stratum], -true[matched.stratum])
    pairs = float(true @ false)
    if not pairs:
        return np.full(values.shape[1], np.nan)
    return (weight * facing) @ values / pairs
