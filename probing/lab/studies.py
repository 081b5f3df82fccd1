"""The probing studies: each takes labelled sets with activations and returns a DataFrame.

Every probe is trained and thresholded on the training corpus alone (train, validation); test
prompts and the evaluation sets choose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...data.labels import OFFSETS
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ..anatomy import Site
from ..training.families import FAMILIES
from ..training.fitting import fit_on
from ..training.metrics import confusion, f1_at, roc_auc
from ..training.probing_set import ProbingSet
from .evaluation import pool, score_set, scores
from .match_study import match_auroc


def layer_stream_study(
    data: ProbingSet, sites: Sequence[str], *, offset: int, progress: Progress = silent
) -> pd.DataFrame:
    """Layer × stream (paper Fig. 5): one logistic probe a site.

    Returns:
        site, layer, stream, setting, tau, valid_f1, valid_auroc, valid_auroc_given_match (read
        where the gate reads), f1 and auroc (test).
    """
    rows = []
    test = data.rows("test")
    for done, site in enumerate(sites):
        progress("sites", done, len(sites))
        fitted = fit_on(data, site, offset=offset)
        scored = score_set(data, fitted.probe, site, test, lag=offset)
        where = Site.parse(site)
        rows.append(
            {
                "site": site,
                "layer": where.layer,
                "stream": where.stream,
                "setting": fitted.setting,
                "tau": fitted.tau,
                "valid_f1": fitted.valid_f1,
                "valid_auroc": fitted.valid_auroc,
                "valid_auroc_given_match": match_auroc(data, site, fitted.linear, "valid"),
                "f1": f1_at(scored.y, scored.score, fitted.tau),
                "auroc": roc_auc(scored.y, scored.score),
            }
        )
    progress("sites", len(sites), len(sites))
    return pd.DataFrame(rows)


def candidate_sites(layers: pd.DataFrame, *, count: int) -> list[str]:
    """The sites worth a closer look: each stream's best, then what ranks next for the gate.

    The sweep runs on few prompts, so each stream sends its best by validation AUROC given a match
    and its best by validation AUROC; the whole corpus decides between them.
    """
    by_need = layers.sort_values("valid_auroc_given_match", ascending=False, kind="stable")
    by_label = layers.sort_values("valid_auroc", ascending=False, kind="stable")
    best = [ranked.drop_duplicates("stream")["site"] for ranked in (by_need, by_label)]
    order = list(dict.fromkeys([*best[0], *best[1], *by_need["site"]]))
    return order[: max(count, layers["stream"].nunique())]


def offset_study(
    data: ProbingSet, evaluation: Mapping[str, ProbingSet], site: str, *, seed: int = 0
) -> pd.DataFrame:
    """Label offsets 0, 1, 2: each trained, thresholded and tested at itself.

    Returns:
        offset, set (the training corpus' test part, each evaluation set, `all` of those), tau, the
        columns of `evaluation.scores`, and auroc_given_match, where the probe is read at the live
        gate's position whatever its offset (NaN where there is one class).
    """
    rows = []
    for offset in OFFSETS:
        fitted = fit_on(data, site, offset=offset)
        places = {data.name: data, **evaluation}
        scored = {
            name: score_set(place, fitted.probe, site, place.rows("test"), lag=offset)
            for name, place in places.items()
        }
        scored["all"] = pool([scored[name] for name in evaluation])
        for name, part in scored.items():
            row = {"offset": offset, "set": name, "tau": fitted.tau}
            row |= scores(part, fitted.tau, seed=seed)
            if name in places:
                row["auroc_given_match"] = match_auroc(places[name], site, fitted.linear, "test")
            rows.append(row)
    return pd.DataFrame(rows)


def corpora_study(
    corpora: Sequence[ProbingSet],
    evaluation: ProbingSet,
    site: str,
    *,
    offset: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Training-corpus ablation (paper Fig. 4): same site, same number of training tokens.

    τ comes from each corpus' own validation part; `evaluation` chooses nothing.

    Returns:
        corpus, n_train, tau, setting, own_auroc (its own validation), loops (`with`, `without`:
        loop tokens of the evaluation set), true_positive, false_positive, false_negative,
        true_negative, precision, recall and the columns of `evaluation.scores`.
    """
    fewest = min(len(corpus.rows("train")) for corpus in corpora)
    rows = []
    for corpus in corpora:
        train = prompts_up_to(corpus, fewest, seed=seed)
        fitted = fit_on(corpus, site, offset=offset, train=train)
        every = score_set(evaluation, fitted.probe, site, evaluation.rows("test"), lag=offset)
        for loops, scored in (("with", every), ("without", every.without_loops())):
            counts = confusion(scored.y, scored.score, fitted.tau)
            on = counts.true_positive + counts.false_positive
            rows.append(
                {
                    "corpus": corpus.name,
                    "loops": loops,
                    "n_train": fitted.n_train,
                    "setting": fitted.setting,
                    "tau": fitted.tau,
                    "own_auroc": fitted.valid_auroc,
                    **vars(counts),
                    "precision": counts.true_positive / on if on else np.nan,
                    "recall": counts.true_positive / max(int(scored.y.sum()), 1),
                    **scores(scored, fitted.tau, seed=seed),
                }
            )
    return pd.DataFrame(rows)


def training_tokens_study(
    data: ProbingSet,
    evaluation: Mapping[str, ProbingSet],
    site: str,
    *,
    offset: int,
    sizes: Sequence[int],
    seeds: Sequence[int] = (0, 1, 2),
) -> pd.DataFrame:
    """How much training text a probe needs: whole prompts, drawn anew for each seed.

    Returns:
        asked, n_train, seed, auroc and f1 on the training corpus' test part, eval_auroc and
        eval_f1 on the evaluation sets together. Sizes beyond the corpus are all of it, once.
    """
    most = len(data.rows("train"))
    wanted = sorted({min(size, most) for size in sizes})
    rows = []
    for size in wanted:
        for seed in seeds if size < most else seeds[:1]:
            train = prompts_up_to(data, size, seed=seed)
            fitted = fit_on(data, site, offset=offset, train=train)
            own = score_set(data, fitted.probe, site, data.rows("test"), lag=offset)
            there = pool(
                [
                    score_set(place, fitted.probe, site, place.rows("test"), lag=offset)
                    for place in evaluation.values()
                ]
            )
            rows.append(
                {
                    "asked": size,
                    "n_train": fitted.n_train,
                    "seed": seed,
                    "auroc": roc_auc(own.y, own.score),
                    "f1": f1_at(own.y, own.score, fitted.tau),
                    "eval_auroc": roc_auc(there.y, there.score),
                    "eval_f1": f1_at(there.y, there.score, fitted.tau),
                }
            )
    return pd.DataFrame(rows)


def probe_family_study(
    data: ProbingSet,
    evaluation: Mapping[str, ProbingSet],
    site: str,
    *,
    offset: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Probe families at one site: logistic, difference of means, LDA, one-hidden-layer MLP.

    Returns:
        probe, setting, tau, set, and the columns of `evaluation.scores`.
    """
    rows = []
    for family in FAMILIES:
        fitted = fit_on(data, site, offset=offset, family=family, seed=seed)
        scored = {
            name: score_set(place, fitted.probe, site, place.rows("test"), lag=offset)
            for name, place in {data.name: data, **evaluation}.items()
        }
        scored["all"] = pool([scored[name] for name in evaluation])
        for name, part in scored.items():
            rows.append(
                {"probe": family, "setting": fitted.setting, "tau": fitted.tau, "set": name}
                | scores(part, fitted.tau, seed=seed)
            )
    return pd.DataFrame(rows)


def prompts_up_to(data: ProbingSet, tokens: int, *, seed: int) -> np.ndarray:
    """Training tokens of whole prompts in random order, until there are `tokens` of them.

    The last prompt is cut, so that corpora are compared at one number of tokens.

    Raises:
        SwitchSDError: fewer training tokens than asked for.
    """
    train = data.rows("train")
    if not 1 <= tokens <= len(train):
        raise SwitchSDError(
            f"{data.name} has {len(train)} training tokens, not {tokens}; ask for fewer"
        )
    names, codes = np.unique(data.groups[train], return_inverse=True)
    rank = np.random.default_rng(seed).permutation(len(names))
    order = np.argsort(rank[codes], kind="stable")
    return np.sort(train[order[:tokens]])
