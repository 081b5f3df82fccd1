"""The sweep: the planted site wins, by validation, and test prompts choose nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.probing.activations.store import (
    ActivationStore,
    StoreKey,
    create_or_resume,
    open_store,
)
from switchsd.probing.corpora.partition import split_groups
from switchsd.probing.training.families import fit_logistic_path
from switchsd.probing.training.metrics import best_f1_threshold, f1_at, roc_auc
from switchsd.probing.training.sweep import ProbeData, evaluate, fit_site, sweep

SITES = [f"blocks.{layer}.{s}" for layer in (0, 1) for s in ("hook_attn_out", "hook_mlp_out")]


def planted(folder: Path, strength: dict[str, float]) -> tuple[ActivationStore, ProbeData]:
    rng = np.random.default_rng(0)
    n, prompts = 3000, 60
    groups = np.repeat([f"p{i}" for i in range(prompts)], n // prompts)
    y = rng.random(n) < 0.4
    key = StoreKey("m", tuple(strength), "float32", "sdpa", "c", "r", {})
    with create_or_resume(folder, key, d=dict.fromkeys(strength, 12)) as writer:
        rows = {}
        for site, size in strength.items():
            x = rng.normal(size=(n, 12))
            x[:, 3] += size * y
            rows[site] = torch.from_numpy(x).float()
        writer.append("all", rows, {"row": np.zeros(n, int), "position": np.arange(n)})
    tokens = pd.DataFrame({"prompt_id": groups, "copied": y, "family": "f"})
    return open_store(folder, key=key), ProbeData(
        np.arange(n), tokens, *split_groups(groups, seed=1)
    )


def test_planted_site_is_chosen(tmp_path: Path) -> None:
    strength = dict(zip(SITES, (0.2, 0.0, 2.0, 0.5), strict=True))
    store, data = planted(tmp_path / "s", strength)
    seen = []
    result = sweep(store, data, progress=lambda what, done, total: seen.append((done, total)))
    assert result.best.site == SITES[2]
    table = result.table().set_index("site")
    assert table["auroc"].idxmax() == SITES[2]
    assert table.loc[SITES[1], "auroc"] == pytest.approx(0.5, abs=0.07)
    assert list(table["layer"]) == [0, 0, 1, 1]
    assert seen[-1] == (4, 4)


def test_choice_is_by_validation_and_figures_by_test(tmp_path: Path) -> None:
    store, data = planted(tmp_path / "s", {SITES[0]: 1.0})
    fit = fit_site(store, data, SITES[0], C=[0.01])
    X = store.read(SITES[0]).numpy()
    (probe,) = fit_logistic_path(X[data.train], data.y[data.train], C=[0.01])
    tau, f1 = best_f1_threshold(data.y[data.valid], probe.score(X[data.valid]))
    assert (fit.tau, fit.valid_f1) == (tau, f1)
    score = probe.score(X[data.test])
    assert fit.test_auroc == pytest.approx(roc_auc(data.y[data.test], score))
    assert fit.test_f1 == pytest.approx(f1_at(data.y[data.test], score, tau))
    figures = evaluate(data.y[data.test], score, data.groups[data.test], tau)
    assert figures.auroc.low < figures.auroc.value < figures.auroc.high
    assert figures.n_tokens == len(data.test)


def test_unknown_sites_are_named(tmp_path: Path) -> None:
    store, data = planted(tmp_path / "s", {SITES[0]: 1.0})
    with pytest.raises(SwitchSDError, match="attn_out"):
        sweep(store, data, ["blocks.7.hook_attn_out"])
    with pytest.raises(SwitchSDError):
        sweep(store, data, [])
