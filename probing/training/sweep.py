"""Every layer × stream: fit on train, choose the site and τ on validation, report on test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Shaped

from ...data.labels import OFFSETS
from ...errors import SwitchSDError
from ...intervals import Estimate, auroc, interval, prompt_numbers
from ...progress import Progress, silent
from ..activations.store import ActivationStore
from ..anatomy import Site
from ..corpora.partition import split_groups
from .families import C_PATH, LinearProbe, fit_logistic_path
from .metrics import (
    best_f1_threshold,
    f1_always_copy,
    f1_at,
    f1_of_prompts,
    require_both_classes,
    roc_auc,
)


@dataclass(frozen=True)
class FittedSite:
    """The best probe of one site.

    Attributes:
        site: where.
        probe: its weights.
        C: inverse regularisation, chosen on validation.
        tau: threshold, chosen on validation.
        valid_f1, valid_auroc: what it was chosen by.
        test_f1, test_auroc: on prompts that chose nothing.
    """

    site: str
    probe: LinearProbe
    C: float
    tau: float
    valid_f1: float
    valid_auroc: float
    test_f1: float
    test_auroc: float


@dataclass(frozen=True)
class Sweep:
    """All sites of a sweep.

    Attributes:
        fitted: one entry a site.
        data: what they were fitted on.
    """

    fitted: tuple[FittedSite, ...]
    data: ProbeData

    @property
    def best(self) -> FittedSite:
        """The site with the highest validation F1 (the paper's rule)."""
        return max(self.fitted, key=lambda f: f.valid_f1)

    def table(self) -> pd.DataFrame:
        """site, layer, stream, f1, auroc (test), tau, C, valid_f1, valid_auroc."""
        rows = []
        for fit in self.fitted:
            site = Site.parse(fit.site)
            rows.append(
                {
                    "site": fit.site,
                    "layer": site.layer,
                    "stream": site.stream,
                    "f1": fit.test_f1,
                    "auroc": fit.test_auroc,
                    "tau": fit.tau,
                    "C": fit.C,
                    "valid_f1": fit.valid_f1,
                    "valid_auroc": fit.valid_auroc,
                }
            )
        return pd.DataFrame(rows)


def sweep(
    store: ActivationStore,
    data: ProbeData,
    sites: Sequence[str] | None = None,
    *,
    C: Sequence[float] = C_PATH,
    progress: Progress = silent,
) -> Sweep:
    """Fit a logistic probe at every site of the store.

    Args:
        store: activations.
        data: labelled rows and their split.
        sites: which sites; all of the store's if None.
        C: regularisation path; the best C by validation F1 is kept.
        progress: told the number of sites.

    Raises:
        SwitchSDError: a site the store does not hold, one class only, activations not finite.
    """
    chosen = list(store.sites if sites is None else sites)
    unknown = [site for site in chosen if site not in store.sites]
    if unknown or not chosen:
        raise SwitchSDError(f"the store holds {len(store.sites)} sites, not {unknown or 'none'}")
    fitted = []
    for done, site in enumerate(chosen):
        progress("probes", done, len(chosen))
        fitted.append(fit_site(store, data, site, C=C))
    progress("probes", len(chosen), len(chosen))
    return Sweep(tuple(fitted), data)


def fit_site(
    store: ActivationStore, data: ProbeData, site: str, *, C: Sequence[float] = C_PATH
) -> FittedSite:
    """Fit one site on train, choose C and τ on validation by F1, measure on test."""
    X, y = store.read(site, data.index).numpy(), data.y
    train, valid, test = data.train, data.valid, data.test
    candidates = []
    for c, probe in zip(C, fit_logistic_path(X[train], y[train], C=C), strict=True):
        tau, f1 = best_f1_threshold(y[valid], probe.score(X[valid]))
        candidates.append((f1, c, tau, probe))
    f1, c, tau, probe = max(candidates, key=lambda row: row[0])
    score = probe.score(X[test])
    return FittedSite(
        site=site,
        probe=probe,
        C=c,
        tau=tau,
        valid_f1=f1,
        valid_auroc=roc_auc(y[valid], probe.score(X[valid])),
        test_f1=f1_at(y[test], score, tau),
        test_auroc=roc_auc(y[test], score),
    )


@dataclass(frozen=True)
class Evaluation:
    """A probe's test figures, intervals over prompts."""

    auroc: Estimate
    f1: Estimate
    f1_always_copy: float
    prevalence: float
    n_tokens: int
    n_prompts: int


def evaluate(
    y: np.ndarray, score: np.ndarray, groups: np.ndarray, tau: float, *, seed: int = 0
) -> Evaluation:
    """AUROC and F1 at τ with bootstrap intervals over prompts.

    Raises:
        SwitchSDError: one class only, or fewer than two prompts.
    """
    require_both_classes(y)
    prompt, n = prompt_numbers(groups)
    return Evaluation(
        auroc=interval(auroc(prompt, y, score), n, seed=seed),
        f1=interval(f1_of_prompts(prompt, y, score, tau), n, seed=seed),
        f1_always_copy=f1_always_copy(y),
        prevalence=float(np.mean(y)),
        n_tokens=len(y),
        n_prompts=n,
    )


@dataclass(frozen=True)
class ProbeData:
    """Labelled rows of a store, split by prompt.

    Attributes:
        index: row of the store for each labelled token.
        tokens: the labelled tokens (`label_table`), in the same order.
        train, valid, test: positions in `index`.
    """

    index: Int[np.ndarray, token]
    tokens: pd.DataFrame
    train: Int[np.ndarray, _]
    valid: Int[np.ndarray, _]
    test: Int[np.ndarray, _]

    @property
    def y(self) -> Bool[np.ndarray, token]:
        """The paper's label."""
        return self.tokens["copied"].to_numpy()

    @property
    def groups(self) -> Shaped[np.ndarray, token]:
        """Prompt of each token."""
        return self.tokens["prompt_id"].to_numpy()


def align(
    columns: pd.DataFrame, labels: pd.DataFrame, offset: int
) -> tuple[np.ndarray, pd.DataFrame]:
    """Match stored positions with the tokens they answer for.

    Args:
        columns: the store's `row` and `position`.
        labels: `label_table` of the same corpus.
        offset: the hidden state at position j answers for the token at j + offset.

    Returns:
        (store row of each matched token, the matched tokens).
    """
    if offset not in OFFSETS:
        raise SwitchSDError(f"label offset {offset}: choose one of {', '.join(map(str, OFFSETS))}")
    stored = pd.DataFrame(
        {
            "row": columns["row"].to_numpy(),
            "position": columns["position"].to_numpy() + offset,
            "store_row": np.arange(len(columns)),
        }
    )
    merged = labels.merge(stored, on=["row", "position"], how="inner")
    return merged.pop("store_row").to_numpy(), merged


def probe_data(
    columns: pd.DataFrame, labels: pd.DataFrame, *, offset: int, seed: int = 0
) -> ProbeData:
    """Align at `offset` and split by prompt into 60 % train, 20 % validation, 20 % test.

    Raises:
        SwitchSDError: too few prompts to split, or an offset that is not 0, 1 or 2.
    """
    index, tokens = align(columns, labels, offset)
    parts = split_groups(
        tokens["prompt_id"].to_numpy(), seed=seed, stratify_by=tokens["family"].to_numpy()
    )
    return ProbeData(index, tokens, *parts)
