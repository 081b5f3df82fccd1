"""Figures of the probing studies: they draw the table they are given, and refuse another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from switchsd import SwitchSDError
from switchsd.analysis import probing_figures as figures
from switchsd.analysis import threshold_figures as threshold


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
