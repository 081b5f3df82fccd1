"""Given a match: the probe wins only where it knows more than the surface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from switchsd import SwitchSDError
from switchsd.probing.corpora.token_table import given_match
from switchsd.probing.lab.match_study import (
    fit_match_models,
    match_auroc,
    match_scores,
    match_table,
    selection_table,
)
from switchsd.probing.training.fitting import fit, fit_on
from switchsd.probing.training.probing_set import ProbingSet
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


def contest(data: ProbingSet) -> pd.DataFrame:
    """Every contestant's logits at the test prompts' positions with a match."""
    gate = fit_on(data, SITE, offset=2, target="accepted_given_match").linear
    label = fit_on(data, SITE, offset=2).linear
    models = fit_match_models(data, (SITE, gate), (SITE, label))
    return match_table(data, models, data.rows("test"))


def test_intent_beats_the_surface(intent: ProbingSet) -> None:
    table = contest(intent)
    decided = intent.tokens["offered"] & (intent.tokens["follows"] >= 3)
    assert len(table) == int(decided[intent.rows("test")].sum())
    row = match_scores(table)
    assert row["auroc_given_match"] == pytest.approx(roc_auc_score(table["y"], table["probe"]))
    assert row["gain_given_match"] == pytest.approx(
        roc_auc_score(table["y"], table["probe"]) - roc_auc_score(table["y"], table["surface"])
    )
    assert row["gain_given_match_low"] > 0
    assert row["label_gain_given_match_low"] > 0
    assert row["both_auroc_given_match"] > row["surface_auroc_given_match"]
    gate = fit_on(intent, SITE, offset=2, target="accepted_given_match").linear
    assert match_auroc(intent, SITE, gate, "test") == row["auroc_given_match"]


def test_a_probe_that_restates_the_label_rule_gains_nothing(tmp_path: Path) -> None:
    noise = planted_set(tmp_path / "s", texts(60), strength=0.0)
    row = match_scores(contest(noise))
    assert row["gain_given_match"] < 0.05
    assert row["both_auroc_given_match"] == pytest.approx(
        row["surface_auroc_given_match"], abs=0.05
    )


def test_the_gates_target_is_trained_where_a_gate_decides(intent: ProbingSet) -> None:
    fitted = fit_on(intent, SITE, offset=2, target="accepted_given_match")
    train = intent.rows("train")
    assert fitted.n_train == int(given_match(intent.tokens)[train].sum()) < len(train)


def test_one_class_gives_no_figure_instead_of_a_wrong_one(intent: ProbingSet) -> None:
    table = contest(intent)
    for part in (table[~table["y"]], table[:0], table[table["prompt_id"] == table["prompt_id"][0]]):
        row = match_scores(part)
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
