"""Which parts of the probe's logit tell positions apart that look the same (see `matched`)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ..probing.lens import Lens
from ..progress import Progress, silent
from .attribution import attribute
from .copy_texts import CopyTexts
from .intervals import auroc_figure
from .matched import Matched
from .probe_reading import Reading


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
    ones = np.ones(matched.n_prompts, np.int64)
    difference = _differences(matched, values, ones)
    random = np.random.default_rng(seed)
    even = np.full(matched.n_prompts, 1 / matched.n_prompts)
    drawn = np.stack(
        [
            _differences(matched, values, random.multinomial(matched.n_prompts, even))
            for _ in range(n_boot)
        ]
    )
    drawn = drawn[np.isfinite(drawn).all(1)]
    table = parts.reset_index(drop=True)
    for name, value, resampled in (
        ("difference", difference, drawn),
        ("share", difference / difference.sum(), drawn / drawn.sum(1, keepdims=True)),
    ):
        low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
        table = table.assign(**{name: value, f"{name}_low": low, f"{name}_high": high})
    aurocs = [
        auroc_figure(matched.prompt, matched.goes_on, column, matched.stratum)(ones)
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
