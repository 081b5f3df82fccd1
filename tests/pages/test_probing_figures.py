"""Figures of the probing studies: they draw the table they are given, and refuse another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.figures import probing as figures
from switchsd.analysis.figures import thresholds as threshold


def evaluation() -> pd.DataFrame:
    rows = []
    for place, name in enumerate(("humaneval", "all")):
        for loops in ("with", "without"):
            row: dict[str, object] = {"set": name, "loops": loops}
            for column, value in (
                ("auroc", 0.9),
                ("auroc_given_match", 0.8),
                ("surface_auroc_given_match", 0.7),
                ("label_auroc_given_match", 0.72),
                ("both_auroc_given_match", 0.82),
            ):
                middle = value - 0.1 * place
                row |= {column: middle, f"{column}_low": middle - 0.02}
                row[f"{column}_high"] = middle + 0.05
            rows.append(row)
    return pd.DataFrame(rows)


def corpora() -> pd.DataFrame:
    counts = {"true_positive": 30, "false_positive": 5, "false_negative": 10, "true_negative": 55}
    names = ("copy_diversity", "natural_text", "constructed_copy")
    return pd.DataFrame(
        [{"corpus": c, "loops": "with", "f1": 0.8, "auroc": 0.9, **counts} for c in names]
    )


def test_intervals_are_drawn_from_low_to_high() -> None:
    drawn = figures.auroc_by_set(evaluation())
    first = drawn.data[0]
    assert list(first.x) == ["HumanEval", "all four benchmarks"]
    np.testing.assert_allclose(first.error_y.array, 0.05)
    np.testing.assert_allclose(first.error_y.arrayminus, 0.02)
    assert {trace.name for trace in drawn.data} == {"with loop tokens", "without loop tokens"}


def test_given_match_sets_the_contestants_side_by_side() -> None:
    drawn = figures.given_match(evaluation(), loops="without")
    values = {trace.name: trace.y[0] for trace in drawn.data}
    assert values == {
        "surface baseline": 0.7,
        "probe of the paper's label": 0.72,
        "served probe": 0.8,
        "activations and surface": 0.82,
    }
    assert len({trace.marker.symbol for trace in drawn.data}) == 4


def test_confusion_rows_sum_to_one_and_say_copy_where_it_is() -> None:
    drawn = threshold.confusion_by_corpus(corpora())
    assert len(drawn.data) == 3
    shares = np.array(drawn.data[0].z)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[1][1] == 30 / 40  # copied, and the probe says copy
    assert shares[0][1] == 5 / 60


def test_tau_curves_mark_the_served_tau() -> None:
    table = pd.DataFrame(
        {"set": "all", "tau": [0, 0.5, 1], "f1": [0.6, 0.8, 0.1], "precision": [0.4, 0.8, 1],
         "recall": [1, 0.8, 0.05]}
    )  # fmt: skip
    drawn = threshold.tau_curves(table, tau=0.44)
    assert drawn.layout.shapes[0].x0 == 0.44
    assert "0.440" in drawn.layout.annotations[0].text
    with pytest.raises(SwitchSDError, match="no set 'mtbench'"):
        threshold.tau_curves(table, tau=0.4, of="mtbench")


def test_roc_keeps_its_ends_when_thinned() -> None:
    random = np.random.default_rng(0)
    label = random.random(5000) < 0.5
    table = pd.DataFrame({"set": "all", "label": label, "score": random.random(5000)})
    curve = threshold.roc_by_set(table).data[1]
    assert (curve.x[0], curve.y[0]) == (0, 0)
    assert (curve.x[-1], curve.y[-1]) == (1, 1)
    assert len(curve.x) < 1000


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(auroc_low=table["auroc"] - 0.1, auroc_high=table["auroc"] + 0.05)


def test_offsets_are_a_line_a_set() -> None:
    table = with_intervals(
        pd.DataFrame(
            {"offset": [0, 1, 2] * 2, "set": ["humaneval"] * 3 + ["all"] * 3,
             "auroc": [0.9, 0.8, 0.7, 0.85, 0.75, 0.65]}
        )
    )  # fmt: skip
    drawn = figures.offsets(table)
    lines = {trace.name: (list(trace.x), list(trace.y)) for trace in drawn.data}
    assert lines == {
        "HumanEval": ([0, 1, 2], [0.9, 0.8, 0.7]),
        "all four benchmarks": ([0, 1, 2], [0.85, 0.75, 0.65]),
    }
    np.testing.assert_allclose(drawn.data[0].error_y.arrayminus, 0.1)


def test_probe_families_are_named_and_a_series_a_set() -> None:
    table = with_intervals(
        pd.DataFrame(
            {"probe": ["logistic", "small_mlp"] * 2, "set": ["all"] * 2 + ["cnndm"] * 2,
             "auroc": [0.8, 0.82, 0.6, 0.61]}
        )
    )  # fmt: skip
    series = {trace.name: trace for trace in figures.probe_families(table).data}
    assert list(series["CNN/DM"].x) == ["logistic", "small mlp"]
    assert list(series["CNN/DM"].y) == [0.6, 0.61]
    np.testing.assert_allclose(series["all four benchmarks"].error_y.array, 0.05)


def test_controls_stand_beside_chance() -> None:
    table = with_intervals(
        pd.DataFrame({"control": ["real labels", "shuffled"], "auroc": [0.9, 0.51]})
    )
    drawn = figures.controls(table)
    assert list(drawn.data[0].x) == ["real labels", "shuffled"]
    assert list(drawn.data[0].y) == [0.9, 0.51]
    assert drawn.layout.shapes[0].y0 == 0.5


def test_families_are_sorted_by_how_much_they_copy() -> None:
    rows = [("edit", "with", 0.9, 0.7, 0.95, 0.5), ("story", "with", 0.4, 0.2, 0.8, 0.1),
            ("story", "without", 0.3, 0.1, 0.7, 0.05)]  # fmt: skip
    columns = ["family", "loops", "f1", "f1_always_copy", "auroc", "prevalence"]
    drawn = figures.families(pd.DataFrame(rows, columns=columns))
    series = {trace.name: trace for trace in drawn.data}
    assert list(series["probe F1"].y) == ["story", "edit"]
    assert list(series["probe F1"].x) == [0.4, 0.9]
    assert list(series["always-copy F1"].x) == [0.2, 0.7]
    assert list(series["AUROC"].customdata) == [0.1, 0.5]


def test_tries_stand_in_the_order_they_were_made() -> None:
    table = pd.DataFrame(
        {"attempt": ["first", "second"], "auroc": [0.8, 0.81], "auroc_given_match": [0.7, 0.74]}
    )
    series = {trace.name: trace for trace in figures.tries(table).data}
    assert list(series["the paper's label"].y) == ["second", "first"]  # the first on top
    assert list(series["the paper's label"].x) == [0.81, 0.8]
    assert list(series["accepted ≥ 3, given a match"].x) == [0.74, 0.7]


def test_calibration_sets_what_is_said_against_what_is_seen() -> None:
    table = pd.DataFrame(
        {"set": ["all", "all"], "mean_score": [0.2, 0.9], "share": [0.1, 0.8], "n": [50, 7]}
    )
    diagonal, line = threshold.calibration(table).data
    assert list(diagonal.x) == list(diagonal.y) == [0, 1]
    assert (list(line.x), list(line.y), list(line.customdata)) == ([0.2, 0.9], [0.1, 0.8], [50, 7])


def test_the_probe_that_a_table_was_scored_with_is_the_labels_where_there_are_two() -> None:
    assert figures.scored_probe({"probe": {"tau": 0.5}}) == {"tau": 0.5}
    assert figures.scored_probe({"served": {"tau": 0.4}, "label_probe": {"tau": 0.6}}) == {
        "tau": 0.6
    }
    assert figures.scored_probe({"probe": "damaged"}) == {}


def test_training_tokens_show_every_draw_and_their_mean() -> None:
    table = pd.DataFrame(
        {"n_train": [100, 100, 500], "auroc": [0.7, 0.8, 0.9], "eval_auroc": [0.6, 0.6, 0.8]}
    )
    drawn = figures.training_tokens(table)
    assert list(drawn.data[0].y) == [pytest.approx(0.75), 0.9]
    assert len(drawn.data[1].x) == 3


@pytest.mark.parametrize(
    "draw",
    [
        figures.auroc_by_set,
        figures.given_match,
        threshold.confusion_by_corpus,
        threshold.roc_by_set,
        threshold.calibration,
        figures.offsets,
        figures.training_tokens,
        figures.probe_families,
        figures.controls,
        figures.families,
        figures.tries,
    ],
)
def test_another_table_is_refused_in_words(draw: Callable[[pd.DataFrame], go.Figure]) -> None:
    with pytest.raises(SwitchSDError, match="lacks"):
        draw(pd.DataFrame({"something": [1]}))
