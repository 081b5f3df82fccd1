"""Labels that carry no copy mode: what a probe scores on them is not what it is meant to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int, Shaped

from ...errors import SwitchSDError
from ...intervals import Estimate, auroc, interval, prompt_numbers
from ..corpora.partition import split_groups
from ..lens import Lens
from ..loading import wrap
from ..training.families import fit_logistic_path
from ..training.fitting import fit
from ..training.metrics import f1_at, require_both_classes, roc_auc
from ..training.probing_set import ProbingSet


def shuffled_labels(
    y: Shaped[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"], seed: int
) -> Bool[np.ndarray, " n"]:
    """The labels, dealt out to other tokens; expect AUROC 0.5.

    The prompts' label sequences are joined in random order, rotated by a random amount and laid
    over the tokens again: prevalence and (but for the seams) the lengths of copy spans stay, so
    the control is as autocorrelated as the real labels.
    """
    labels, random = np.asarray(y).astype(bool), np.random.default_rng(seed)
    if len(labels) < 2:
        raise SwitchSDError(f"{len(labels)} labels cannot be shuffled; use more prompts")
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    mixed = np.argsort(random.permutation(len(names))[codes], kind="stable")
    shuffled = np.empty_like(labels)
    place = np.argsort(codes, kind="stable")
    shuffled[place] = np.roll(labels[mixed], random.integers(1, len(labels)))
    return shuffled


def random_label_per_token_type(
    ids: Int[np.ndarray, " n"], seed: int, prevalence: float
) -> Bool[np.ndarray, " n"]:
    """One coin per vocabulary entry, the same wherever it occurs (Hewitt & Liang, 2019).

    The coin of an id depends on seed, prevalence and id only, so train and test sets agree.
    """
    if not 0 < prevalence < 1:
        raise SwitchSDError(f"prevalence must lie between 0 and 1, got {prevalence}")
    tokens = np.asarray(ids)
    coins = np.random.default_rng(seed).random(int(tokens.max(initial=0)) + 1)
    return (coins < prevalence)[tokens]


def prompt_only_labels(groups: Shaped[np.ndarray, " n"], seed: int) -> Bool[np.ndarray, " n"]:
    """One label for all tokens of a prompt, half of the prompts each; for the leakage test.

    Under a split by prompt nothing can predict it (AUROC 0.5); under a split by token it leaks.
    """
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        raise SwitchSDError(f"{len(names)} prompt cannot carry two labels; use more prompts")
    rank = np.random.default_rng(seed).permutation(len(names))
    return (rank < len(names) // 2)[codes]


def control_study(
    data: ProbingSet,
    random_model: ProbingSet,
    site: str,
    *,
    offset: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Real labels, shuffled labels, a random label a token type, and a random-weights model.

    All are fitted and tested in the same way, on the same prompts, in `data`'s parts. The random
    label belongs to the token at the position that is read (Hewitt & Liang, 2019).

    Args:
        data: the training corpus.
        random_model: the same texts read by a model of the same shape with random weights.
        site: where the probe reads.
        offset: label offset.
        seed: of the controls.

    Returns:
        control, auroc with interval over prompts, f1, tau, prevalence, n_tokens, selectivity (real
        minus control, Hewitt & Liang, 2019).
    """
    real = data.tokens["copied"].to_numpy()
    read = data.tokens[("id", "anchor_id", "read_id")[offset]].to_numpy()
    labels = {
        "real": (data, real),
        "shuffled labels": (data, shuffled_labels(real, data.groups, seed)),
        "random label per token type": (
            data,
            random_label_per_token_type(read, seed, float(real.mean())),
        ),
        "random-weights model": (random_model, random_model.tokens["copied"].to_numpy()),
    }
    rows: list[dict[str, Any]] = []
    for name, (place, y) in labels.items():
        found, f1, tau, count = _test(place, site, y, offset, seed)
        first = rows[0]["auroc"] if rows else found.value
        rows.append(
            {
                "control": name,
                **found.columns("auroc"),
                "f1": f1,
                "tau": tau,
                "prevalence": float(y.mean()),
                "n_tokens": count,
                "selectivity": first - found.value,
            }
        )
    return pd.DataFrame(rows)


def leakage_study(
    data: ProbingSet, site: str, *, offset: int, seeds: Sequence[int] = range(8), C: float = 1e-2
) -> pd.DataFrame:
    """Labels that depend only on the prompt: nothing can be learnt unless the split leaks.

    Under a split by prompt AUROC has to be 0.5 on average; a split by token shows what leaks.

    Returns:
        seed, split (`prompt` or `token`), auroc.
    """
    every = np.arange(len(data.tokens))
    X, rows = data.activations(site, every, lag=offset), []
    for seed in seeds:
        y = prompt_only_labels(data.groups, seed)
        for split, groups in (("prompt", data.groups), ("token", every)):
            train, test = split_groups(groups, fractions=(0.7, 0.3), seed=seed)
            [probe] = fit_logistic_path(X[train], y[train], C=[C])
            auroc = roc_auc(y[test], probe.logit(X[test]))
            rows.append({"seed": seed, "split": split, "auroc": auroc})
    return pd.DataFrame(rows)


def random_weights(lens: Lens, *, seed: int) -> Lens:
    """A model of the same architecture with freshly initialised weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(lens.model)(lens.model.config).to(lens.model.dtype).eval()
    name = f"{lens.name} with random weights"
    return wrap(model, lens.tokenizer, name=name, device=str(lens.device))


def _test(
    data: ProbingSet, site: str, y: np.ndarray, offset: int, seed: int
) -> tuple[Estimate, float, float, int]:
    train, valid, test = (data.rows(part) for part in ("train", "valid", "test"))
    X = {part: data.activations(site, rows, lag=offset) for part, rows in
         (("train", train), ("valid", valid), ("test", test))}  # fmt: skip
    fitted = fit(X["train"], y[train], data.groups[train], (X["valid"], y[valid]), seed=seed)
    score = fitted.probe.score(X["test"])
    require_both_classes(y[test])
    prompt, n = prompt_numbers(data.groups[test])
    found = interval(auroc(prompt, y[test], score), n, seed=seed)
    return found, f1_at(y[test], score, fitted.tau), fitted.tau, len(test)
