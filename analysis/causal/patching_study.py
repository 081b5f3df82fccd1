"""Patching over many pairs: which heads and MLPs carry a copy, where, and how far gradients agree.

Effects are added over pairs and divided by the added distance between clean and corrupted runs, so
that a share is of what the corruption took. Shares of all units do not sum to 1: units lie one
after the other, and each passes on what the earlier ones say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Int
from scipy.stats import rankdata

from ...errors import SwitchSDError
from ...intervals import Estimate, Statistic, each, interval, mean, ratio
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress, silent
from ..figures.causal import MLP, REGIONS
from .copy_pairs import CopyPair
from .patching import TARGETS, exact_patching, gradient_patching, hinges_on_source, largest_units


def patch_pairs(
    lens: Lens,
    pairs: Sequence[CopyPair],
    probe: CopyProbe,
    *,
    limit: int = 24,
    exact: int = 20,
    progress: Progress = silent,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Gradient patching of every unit, and exact patching of the largest, one pair a prompt.

    Args:
        lens: the target, live backend, float32.
        pairs: of evaluation texts; of each prompt the first counts that the model copies in while
            it does not in the corrupted text.
        probe: whose logit is the second figure.
        limit: prompts at most.
        exact: units of each pair patched exactly for each figure, the largest by gradient.
        progress: told the number of pairs.

    Returns:
        Component table: pair, layer, head, region (of `copy_pairs.REGIONS`), copy, probe (effects
        by gradient, summed over the region's positions), copy_gap, probe_gap (clean − corrupt).
        Unit table: pair, target, layer, head, position, region, gradient, exact.

    Raises:
        SwitchSDError: no pair whose corruption keeps the model from copying.
    """
    components, exactly = [], []
    used: set[str] = set()
    total = min(limit, len({pair.prompt_id for pair in pairs}))
    for pair in pairs:
        if pair.prompt_id in used or len(used) == limit or not hinges_on_source(lens, pair):
            continue
        progress("patching", len(used), total)
        used.add(pair.prompt_id)
        patched = gradient_patching(lens, pair, probe)
        region = np.array(REGIONS)[pair.regions(probe.label_offset)]
        gradient = patched.gradient.assign(
            region=region[patched.gradient["position"].to_numpy()], pair=pair.prompt_id
        )
        by_region = gradient.groupby(["pair", "layer", "head", "region"], as_index=False)
        summed = by_region[list(TARGETS)].sum()
        for target in TARGETS:
            summed[f"{target}_gap"] = patched.clean[target] - patched.corrupt[target]
        components.append(summed)
        largest = {target: largest_units(gradient, target, exact) for target in TARGETS}
        units = pd.concat(largest.values()).drop_duplicates(["layer", "head", "position"])
        done = exact_patching(lens, pair, probe, units, patched.choice)
        for target, wanted in largest.items():
            keys = ["layer", "head", "position"]
            rows = wanted.merge(done[[*keys, f"{target}_exact"]], on=keys)
            rows = rows.rename(columns={target: "gradient", f"{target}_exact": "exact"})
            rows = rows.assign(target=target)
            exactly.append(rows[["pair", "target", *keys, "region", "gradient", "exact"]])
    progress("patching", total, total)
    if not components:
        raise SwitchSDError(
            f"in none of the {len(pairs)} pairs does the corruption keep the model from copying; "
            "use other prompts"
        )
    return pd.concat(components, ignore_index=True), pd.concat(exactly, ignore_index=True)


def component_shares(components: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Each head's and MLP's share of what the corruption took, by gradient.

    Args:
        components: of `patch_pairs`.
        seed: of the resampling over pairs.

    Returns:
        layer, head (`MLP` for the MLP), target, share with `_low` and `_high`, and `at_source`,
        `at_after_source`, `at_copy`, `at_reader`, `at_elsewhere`: the parts of it by region.
    """
    pairs = components["pair"].drop_duplicates().tolist()
    rows = []
    for target in TARGETS:
        gaps = components.groupby("pair")[f"{target}_gap"].first().reindex(pairs).to_numpy()
        for (layer, head), part in components.groupby(["layer", "head"]):
            table = part.pivot_table(target, "pair", "region", "sum", 0.0)
            table = table.reindex(index=pairs, columns=list(REGIONS), fill_value=0.0)
            effect = table.sum(axis=1).to_numpy()
            share = _columns("share", ratio(effect, gaps), len(pairs), seed)
            row = {"layer": layer, "head": head, "target": target, **share}
            row |= {f"at_{name}": float(table[name].sum() / gaps.sum()) for name in REGIONS}
            rows.append(row)
    return pd.DataFrame(rows)


def total_shares(components: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Summed shares of all heads and of all MLPs.

    Args:
        components: of `patch_pairs`.
        seed: of the resampling over pairs.

    Returns:
        target, kind (heads, MLPs), share with `_low` and `_high`.
    """
    pairs = components["pair"].drop_duplicates().tolist()
    kind = components["head"].eq(MLP).map({False: "heads", True: "MLPs"})
    rows = []
    for target in TARGETS:
        gaps = components.groupby("pair")[f"{target}_gap"].first().reindex(pairs).to_numpy()
        for name in ("heads", "MLPs"):
            mine = components[kind == name].groupby("pair")[target].sum()
            effect = mine.reindex(pairs, fill_value=0.0).to_numpy()
            share = _columns("share", ratio(effect, gaps), len(pairs), seed)
            rows.append({"target": target, "kind": name, **share})
    return pd.DataFrame(rows)


def agreement(units: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """How well gradient estimates agree with exact patching, over all pairs' largest units.

    Args:
        units: the unit table of `patch_pairs`.
        seed: of the resampling over pairs.

    Returns:
        One row a target: target, n_units, n_pairs, correlation (Pearson), rank_correlation
        (Spearman), same_sign (share of units), each with `_low` and `_high`, and slope (exact over
        gradient, least squares through zero).
    """
    rows = []
    for target, part in units.groupby("target", sort=False):
        names, pair = np.unique(part["pair"], return_inverse=True)
        x, y = (part[name].to_numpy(float) for name in ("gradient", "exact"))
        row = {"target": target, "n_units": len(part), "n_pairs": len(names)}
        for name, statistic in (
            ("correlation", _correlation(pair, x, y)),
            ("rank_correlation", _correlation(pair, x, y, ranked=True)),
            ("same_sign", mean(pair, np.sign(x) == np.sign(y), len(names))),
        ):
            row |= _columns(name, statistic, len(names), seed)
        rows.append(row | {"slope": float(x @ y / max(x @ x, 1e-30))})
    return pd.DataFrame(rows)


def _columns(name: str, statistic: Statistic, n_pairs: int, seed: int) -> dict[str, float]:
    """With its interval; one pair has none."""
    if n_pairs > 1:
        return interval(statistic, n_pairs, seed=seed).columns(name)
    alone = float(statistic(np.ones(1, np.int64)))
    return Estimate(alone, np.nan, np.nan).columns(name)


def _correlation(
    pair: np.ndarray, x: np.ndarray, y: np.ndarray, *, ranked: bool = False
) -> Statistic:
    def of(counts: Int[np.ndarray, " pair"]) -> float:
        rows = np.repeat(np.arange(len(x)), counts[pair])
        a, b = (rankdata(v[rows]) if ranked else v[rows] for v in (x, y))
        a, b = a - a.mean(), b - b.mean()
        scale = float(np.sqrt((a @ a) * (b @ b)))
        return float(a @ b) / scale if scale else float("nan")

    return each(of)
