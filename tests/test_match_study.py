"""Given a match: the probe wins only where it knows more than the surface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from switchsd import SwitchSDError
from switchsd.probing.fitting import fit, fit_on, out_of_fold_logits
from switchsd.probing.match_study import (
    fit_match_models,
    match_auroc,
    match_figures,
    match_table,
    selection_table,
)
from switchsd.probing.metrics import roc_auc
from switchsd.probing.probes import fit_logistic_path
from switchsd.probing.probing_set import ProbingSet
from synthetic_probing import planted_set, texts

SITE = "blocks.1.hook_attn_out"


@pytest.fixture(scope="module")
def intent(tmp_path_factory: pytest.TempPathFactory) -> ProbingSet:
    """Activations that say whether a copy will be accepted, which the surface cannot know."""
    return planted_set(tmp_path_factory.mktemp("s"), texts(60), plant="accepted", strength=3.0)


def test_probe_and_setting_are_chosen_on_validation(intent: ProbingSet) -> None:
    fitted = fit_on(intent, SITE, offset=2, target="accepted")
    assert fitted.setting.startswith("C=")
    assert fitted.valid_auroc > 0.8
    assert fitted.n_train < len(intent.rows("train"))  # cut ends say nothing
    aside = fit_on(intent, SITE, offset=0, target="accepted")
    assert aside.valid_auroc < fitted.valid_auroc  # planted two positions before the token
    with pytest.raises(SwitchSDError, match="unknown probe family"):
        fit_on(intent, SITE, offset=2, family="forest")


def test_several_sites_side_by_side(intent: ProbingSet) -> None:
    both = fit_on(intent, ["blocks.0.hook_attn_out", SITE], offset=2, target="accepted")
    weight = np.abs(both.linear.weight)
    assert len(weight) == 24
    assert weight.argmax() == 12  # the planted column of the second site


def test_out_of_fold_logits_do_not_know_their_own_labels() -> None:
    random = np.random.default_rng(0)
    X, groups = random.normal(size=(300, 60)), np.repeat(np.arange(30), 10)
    y = random.random(300) < 0.5  # nothing to learn
    [probe] = fit_logistic_path(X, y, C=[1.0])
    assert roc_auc(y, probe.logit(X)) > 0.7
    assert roc_auc(y, out_of_fold_logits(X, y, groups, C=1.0)) == pytest.approx(0.5, abs=0.12)
    elsewhere = out_of_fold_logits(X, y, groups, C=1.0, read=np.zeros_like(X))
    assert len(np.unique(elsewhere)) <= 4  # one bias a fold


def test_intent_beats_the_surface_and_both_are_no_worse(intent: ProbingSet) -> None:
    fitted = fit_on(intent, SITE, offset=2)
    models = fit_match_models(intent, SITE, fitted, offset=2, target="copied")
    table = match_table(intent, models, intent.rows("test"))
    assert len(table) == int(
        (intent.tokens["offered"] & (intent.tokens["follows"] >= 3))[intent.rows("test")].sum()
    )
    row = match_figures(table)
    assert row["auroc_given_match"] == pytest.approx(roc_auc_score(table["y"], table["probe"]))
    assert row["gain_given_match"] == pytest.approx(
        roc_auc_score(table["y"], table["probe"]) - roc_auc_score(table["y"], table["surface"])
    )
    assert row["gain_given_match_low"] > 0
    assert row["both_auroc_given_match"] > row["surface_auroc_given_match"]
    assert match_auroc(intent, SITE, fitted.linear, "test") == row["auroc_given_match"]


def test_a_probe_that_restates_the_label_rule_gains_nothing(tmp_path: Path) -> None:
    noise = planted_set(tmp_path / "s", texts(60), strength=0.0)
    fitted = fit_on(noise, SITE, offset=2)
    models = fit_match_models(noise, SITE, fitted, offset=2, target="copied")
    row = match_figures(match_table(noise, models, noise.rows("test")))
    assert row["gain_given_match"] < 0.05
    assert row["both_auroc_given_match"] == pytest.approx(
        row["surface_auroc_given_match"], abs=0.05
    )


def test_one_class_gives_no_figure_instead_of_a_wrong_one(intent: ProbingSet) -> None:
    fitted = fit_on(intent, SITE, offset=2)
    models = fit_match_models(intent, SITE, fitted, offset=2, target="copied")
    table = match_table(intent, models, intent.rows("test"))
    row = match_figures(table[~table["y"]])
    assert np.isnan(row["auroc_given_match"])
    assert np.isnan(row["gain_given_match_low"])


def test_selection_looks_where_the_gate_looks(intent: ProbingSet) -> None:
    table = selection_table(
        intent, ["blocks.0.hook_attn_out", SITE], offsets=(0, 2), targets=("copied", "accepted")
    )
    assert len(table) == 8
    best = table.loc[table["valid_auroc_given_match"].idxmax()]
    assert best["site"] == SITE
    own = table[(table["site"] == SITE) & (table["target"] == "accepted")].set_index("offset")
    assert own.loc[2, "valid_auroc"] > own.loc[0, "valid_auroc"]


def test_validation_of_one_class_is_named() -> None:
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2 == 0
    with pytest.raises(SwitchSDError, match="one class only"):
        fit(X, y, np.arange(40), (X[y], y[y]))
