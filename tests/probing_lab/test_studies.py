"""The studies find what was planted, choose on validation, and report what scikit-learn would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from switchsd import SwitchSDError
from switchsd.probing.lab.controls import control_study, leakage_study, random_weights
from switchsd.probing.lab.evaluation import (
    calibration_table,
    family_table,
    pool,
    score_set,
    scores,
    tau_table,
)
from switchsd.probing.lab.studies import (
    candidate_sites,
    corpora_study,
    layer_stream_study,
    offset_study,
    probe_family_study,
    prompts_up_to,
    training_tokens_study,
)
from switchsd.probing.lab.tries import Attempt, default_attempts, tries_study
from switchsd.probing.training.fitting import fit_on
from switchsd.probing.training.probing_set import ProbingSet
from synthetic_probing import SITES, planted_set, texts

SITE = "blocks.1.hook_attn_out"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ProbingSet:
    return planted_set(tmp_path_factory.mktemp("s"), texts(45))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> ProbingSet:
    corpus = texts(8, seed=5).assign(prompt_id=lambda t: "bench/" + t["prompt_id"])
    return planted_set(tmp_path_factory.mktemp("s"), corpus, name="bench", split=False, seed=5)


def test_figures_are_scikit_learns(data: ProbingSet) -> None:
    fitted = fit_on(data, SITE, offset=2)
    scored = score_set(data, fitted.probe, SITE, data.rows("test"), lag=2)
    row = scores(scored, fitted.tau)
    said = scored.score >= fitted.tau
    assert row["auroc"] == pytest.approx(roc_auc_score(scored.y, scored.score))
    assert row["f1"] == pytest.approx(f1_score(scored.y, said))
    assert row["average_precision"] == pytest.approx(
        average_precision_score(scored.y, scored.score)
    )
    prevalence = scored.y.mean()
    assert row["f1_always_copy"] == pytest.approx(2 * prevalence / (1 + prevalence))
    assert row["auroc_low"] < row["auroc"] < row["auroc_high"]
    assert row["n_prompts"] == data.tokens.loc[data.part == "test", "prompt_id"].nunique()


def test_without_loops_leaves_out_loop_tokens_only(data: ProbingSet) -> None:
    fitted = fit_on(data, SITE, offset=2)
    tokens = data.tokens.assign(in_loop=np.arange(len(data.tokens)) % 3 == 0)
    looping = ProbingSet("x", tokens, data.store, data.part)
    scored = score_set(looping, fitted.probe, SITE, looping.rows("test"), lag=2)
    kept = scored.without_loops()
    assert not kept.tokens["in_loop"].any()
    assert len(kept.y) == (~scored.tokens["in_loop"]).sum()
    assert scores(scored, 0.5)["loop_share"] == pytest.approx(1 / 3, abs=0.01)


def test_one_class_families_have_no_auroc(data: ProbingSet) -> None:
    fitted = fit_on(data, SITE, offset=2)
    scored = score_set(data, fitted.probe, SITE, data.rows("test"), lag=2)
    same = scored.where(scored.y | (scored.tokens["family"] != "f1").to_numpy())
    table = family_table(same, fitted.tau).set_index("family")
    assert list(table.index) == ["f0", "f1", "f2"]
    assert np.isnan(table.loc["f1", "auroc"])
    assert table.loc["f0", "auroc"] > 0.8
    assert np.isnan(scores(same.where(same.y), 0.5)["auroc"])


def test_tau_table_agrees_with_the_figure_at_tau(data: ProbingSet) -> None:
    fitted = fit_on(data, SITE, offset=2)
    scored = score_set(data, fitted.probe, SITE, data.rows("test"), lag=2)
    table = tau_table(scored)
    at = table.iloc[(table["tau"] - 0.4).abs().argmin()]
    assert at["f1"] == pytest.approx(f1_score(scored.y, scored.score >= 0.4))
    assert table["share_on"].is_monotonic_decreasing
    assert table["share_on"].iloc[0] == 1
    assert calibration_table(scored)["n"].sum() == len(scored.y)


def test_layer_stream_finds_the_planted_site(data: ProbingSet) -> None:
    table = layer_stream_study(data, list(SITES), offset=2)
    best = table.loc[table["valid_auroc"].idxmax()]
    assert (best["site"], best["layer"], best["stream"]) == (SITE, 1, "hook_attn_out")
    others = table[table["site"] != SITE]
    assert (others["auroc"] < 0.65).all()
    assert best["auroc"] > 0.85
    chosen = candidate_sites(table, count=2)
    assert chosen[0] == SITE
    assert "blocks.1.hook_resid_mid" in chosen  # every stream's best comes in


def test_each_offset_is_trained_and_tested_at_itself(data: ProbingSet, bench: ProbingSet) -> None:
    table = offset_study(data, {"bench": bench}, SITE).set_index(["offset", "set"])
    assert table["auroc"].unstack().loc[2].min() > 0.85
    assert table.loc[(2, "synthetic"), "auroc"] > table.loc[(0, "synthetic"), "auroc"]
    assert set(table.index.get_level_values("set")) == {"synthetic", "bench", "all"}
    assert table.loc[(0, "all"), "n_tokens"] == len(bench.tokens)


def test_corpora_are_compared_at_one_size_and_keep_their_own_tau(
    data: ProbingSet, bench: ProbingSet, tmp_path: Path
) -> None:
    other = planted_set(tmp_path / "s", texts(20, seed=9), name="noise", strength=0.0)
    table = corpora_study([data, other], bench, SITE, offset=2)
    with_loops = table[table["loops"] == "with"].set_index("corpus")
    assert with_loops["n_train"].nunique() == 1
    assert with_loops["n_train"].iloc[0] == len(other.rows("train"))
    assert with_loops.loc["synthetic", "auroc"] > with_loops.loc["noise", "auroc"] + 0.2
    counts = with_loops[["true_positive", "false_positive", "false_negative", "true_negative"]]
    assert (counts.sum(axis=1) == len(bench.tokens)).all()
    row = with_loops.loc["synthetic"]
    assert row["precision"] == row["true_positive"] / (row["true_positive"] + row["false_positive"])
    # τ is its own validation's, whatever would be best on the evaluation set
    fewest = prompts_up_to(data, len(other.rows("train")), seed=0)
    assert row["tau"] == fit_on(data, SITE, offset=2, train=fewest).tau


def test_training_tokens_take_whole_prompts(data: ProbingSet, bench: ProbingSet) -> None:
    few = prompts_up_to(data, 300, seed=0)
    assert len(few) == 300
    assert (data.part[few] == "train").all()
    per_prompt = pd.Series(data.groups[few]).value_counts()
    whole = pd.Series(data.groups[data.rows("train")]).value_counts()
    assert (per_prompt < whole[per_prompt.index]).sum() <= 1  # only the last is cut
    assert not np.array_equal(few, prompts_up_to(data, 300, seed=1))
    with pytest.raises(SwitchSDError, match="ask for fewer"):
        prompts_up_to(data, 10**6, seed=0)
    table = training_tokens_study(
        data, {"bench": bench}, SITE, offset=2, sizes=(100, 10**6), seeds=(0, 1)
    )
    assert table.groupby("asked").size().tolist() == [2, 1]
    assert table["n_train"].max() == len(data.rows("train"))
    assert table.iloc[-1]["auroc"] >= table.iloc[0]["auroc"] - 0.02


def test_probe_families_all_read_the_planted_direction(data: ProbingSet, bench: ProbingSet) -> None:
    table = probe_family_study(data, {"bench": bench}, SITE, offset=2)
    assert set(table["probe"]) == {"logistic", "difference_of_means", "lda", "mlp"}
    assert (table["auroc"] > 0.8).all()


def test_pool_is_all_sets_together(data: ProbingSet, bench: ProbingSet) -> None:
    fitted = fit_on(data, SITE, offset=2)
    parts = [score_set(s, fitted.probe, SITE, s.rows("test"), lag=2) for s in (data, bench)]
    assert len(pool(parts).y) == sum(len(part.y) for part in parts)
    assert len(np.unique(pool(parts).groups)) == sum(len(np.unique(p.groups)) for p in parts)


def test_controls_find_nothing_where_there_is_nothing(data: ProbingSet, tmp_path: Path) -> None:
    noise = planted_set(tmp_path / "s", texts(45), strength=0.0)
    table = control_study(data, noise, SITE, offset=2).set_index("control")
    assert table.loc["real", "auroc"] > 0.85
    for control in ("shuffled labels", "random-weights model"):
        assert table.loc[control, "auroc"] == pytest.approx(0.5, abs=0.1)
        assert table.loc[control, "selectivity"] == pytest.approx(
            table.loc["real", "auroc"] - table.loc[control, "auroc"]
        )
    # the random label's noise cannot be read here either, since no token identity is planted
    assert table.loc["random label per token type", "auroc"] == pytest.approx(0.5, abs=0.1)


def test_leakage_shows_under_a_token_split_only(tmp_path: Path) -> None:
    told = planted_set(tmp_path / "s", texts(45), plant="prompt", strength=1.0)
    table = leakage_study(told, SITE, offset=2, seeds=range(6)).groupby("split")["auroc"].mean()
    assert table["prompt"] == pytest.approx(0.5, abs=0.1)
    assert table["token"] > 0.65


def test_random_weights_keep_the_shape_and_lose_the_model(tiny) -> None:
    lens = tiny("llama")
    one, same, other = (random_weights(lens, seed=s) for s in (1, 1, 2))
    assert one.fingerprint == same.fingerprint
    assert len({lens.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert (one.n_layers, one.d_model, one.dtype) == (lens.n_layers, lens.d_model, lens.dtype)


def test_tries_are_measured_alike(data: ProbingSet, bench: ProbingSet) -> None:
    attempts = [
        Attempt("served", (SITE,)),
        Attempt("noise", ("blocks.0.hook_attn_out",)),
        Attempt("side by side", ("blocks.0.hook_attn_out", SITE)),
        Attempt("match", (SITE,), target="accepted_given_match"),
        Attempt("few", (SITE,), tokens=200),
    ]
    table = tries_study(data, {"bench": bench}, attempts).set_index("attempt")
    assert table.loc["served", "auroc"] > 0.85 > table.loc["noise", "auroc"]
    assert table.loc["side by side", "auroc"] > 0.8
    assert table.loc["few", "n_train"] == 200
    assert table.loc["match", "n_train"] < table.loc["served", "n_train"]
    fitted = fit_on(data, SITE, offset=2)
    assert table.loc["served", "tau"] == pytest.approx(fitted.tau)


def test_default_attempts_name_only_sites_that_are_stored() -> None:
    attempts = default_attempts(SITE, list(SITES))
    assert {site for attempt in attempts for site in attempt.sites} <= set(SITES)
    assert len({attempt.name for attempt in attempts}) == len(attempts)
