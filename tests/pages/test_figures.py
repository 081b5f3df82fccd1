"""What each figure draws, on tables small enough to count by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from demo_run import copy_yield, decoding, probe_test, sites
from sklearn.metrics import auc, roc_auc_score
from switchsd.analysis.figures import sites as figures
from switchsd.analysis.figures.acceptance import accepted_by_probe_state, accepted_histogram
from switchsd.analysis.figures.curves import (
    accepted_by_path,
    rates_at,
    yield_by_probe_state,
)
from switchsd.analysis.figures.speeds import policy_speedups
from switchsd.analysis.figures.style import FIGURE_CONFIG
from switchsd.analysis.figures.thresholds import roc
from switchsd.errors import SwitchSDError


def trace(figure: go.Figure, name: str) -> dict:
    """The one trace whose name starts so."""
    found = [drawn for drawn in figure.data if (drawn.name or "").startswith(name)]
    assert len(found) == 1, [drawn.name for drawn in figure.data]
    return found[0].to_plotly_json()


def steps_table() -> pd.DataFrame:
    return pd.DataFrame(
        {"path": ["copy", "copy", "copy", "neural", "plain"], "accepted": [0, 7, 7, 3, 0]}
    )


def test_layer_sweep_draws_every_stream_in_layer_order() -> None:
    table = sites()
    drawn = figures.layer_sweep(table.sample(frac=1, random_state=3))
    rows = table[table["stream"] == "hook_mlp_out"].sort_values("layer")
    line = trace(drawn, "mlp_out")
    assert list(line["x"]) == rows["layer"].to_list()
    assert list(line["y"]) == rows["auroc"].to_list()
    assert len({(t.line.dash, t.line.color) for t in drawn.data if t.mode != "markers"}) == 4


def test_layer_sweep_stars_the_best_site_or_the_chosen_one() -> None:
    table = sites()
    best = trace(figures.layer_sweep(table), "best")
    assert (list(best["x"]), list(best["y"])) == ([3], [table["auroc"].max()])
    chosen = trace(figures.layer_sweep(table, "f1", chosen="blocks.1.hook_mlp_out"), "chosen")
    expected = table.set_index("site").loc["blocks.1.hook_mlp_out", "f1"]
    assert (list(chosen["x"]), list(chosen["y"])) == ([1], [expected])


def test_layer_sweep_refuses_an_unknown_site_and_a_site_twice() -> None:
    with pytest.raises(SwitchSDError, match=r"blocks\.99"):
        figures.layer_sweep(sites(), chosen="blocks.99.hook_mlp_out")
    with pytest.raises(SwitchSDError, match="twice"):
        figures.layer_sweep(pd.concat([sites(), sites().head(1)]))


def test_heatmap_puts_each_value_at_its_layer_and_stream() -> None:
    table = sites().sample(frac=1, random_state=1)
    drawn = figures.site_heatmap(table)
    heat = drawn.data[0]
    row, column = list(heat.y).index("resid_post"), list(heat.x).index(2)
    expected = table.set_index("site").loc["blocks.2.hook_resid_post", "auroc"]
    assert heat.z[row][column] == expected
    box = drawn.layout.shapes[0]
    assert heat.z[round((box.y0 + box.y1) / 2)][round((box.x0 + box.x1) / 2)] == np.max(heat.z)


def test_roc_agrees_with_scikit_learn_also_with_ties() -> None:
    table = probe_test(np.random.default_rng(5))
    table["score"] = table["score"].round(1)
    area = roc_auc_score(table["label"], table["score"])
    drawn = roc(table, 0.4)
    curve = trace(drawn, "probe")
    assert auc(curve["x"], curve["y"]) == pytest.approx(area, abs=1e-12)
    assert f"AUROC {area:.3f}, n = 600" in curve["name"]
    assert (curve["x"][0], curve["y"][0], curve["x"][-1], curve["y"][-1]) == (0, 0, 1, 1)


def test_roc_marks_the_rates_at_tau() -> None:
    table = pd.DataFrame({"label": [1, 1, 0, 0, 0], "score": [0.9, 0.4, 0.5, 0.4, 0.1]})
    assert rates_at(table, 0.4) == (pytest.approx(2 / 3), 1.0)  # a score of τ itself says copy
    point = trace(roc(table, 0.45), "τ")
    assert (list(point["x"]), list(point["y"])) == ([pytest.approx(1 / 3)], [0.5])


def test_roc_needs_both_labels() -> None:
    with pytest.raises(SwitchSDError, match="both labels"):
        roc(pd.DataFrame({"label": [1, 1], "score": [0.1, 0.2]}), 0.5)


def test_accepted_by_probe_state_is_a_distribution_for_each_state() -> None:
    table = pd.DataFrame({"probe_on": [1, 1, 1, 1, 0, 0], "accepted": [20, 20, 0, 4, 0, 1]})
    drawn = accepted_by_probe_state(table)
    on, off = trace(drawn, "probe on (n = 4)"), trace(drawn, "probe off (n = 2)")
    assert list(on["x"]) == list(off["x"]) == list(range(21))
    expected = np.zeros(21)
    expected[[0, 4, 20]] = 0.25, 0.25, 0.5
    np.testing.assert_allclose(on["y"], expected)
    assert off["y"][0] == off["y"][1] == 0.5
    words = " ".join(note.text for note in drawn.layout.annotations)
    assert "on: 11.00" in words
    assert "off: 0.50" in words
    assert sorted(shape.x0 for shape in drawn.layout.shapes) == [0.5, 11.0]


def test_accepted_by_probe_state_with_a_probe_that_never_fires() -> None:
    table = copy_yield(np.random.default_rng(0)).assign(probe_on=False)
    counted = yield_by_probe_state(table)
    assert counted["on"].sum() == 0
    assert counted["off"].sum() == pytest.approx(1)
    assert "n = 0" in trace(accepted_by_probe_state(table), "probe on")["name"]


def test_accepted_lengths_beyond_the_bins_are_not_dropped() -> None:
    table = pd.DataFrame({"probe_on": [True], "accepted": [25]})
    with pytest.raises(SwitchSDError, match="max_length=25"):
        accepted_by_probe_state(table)
    longer = steps_table().assign(accepted=[0, 7, 33, 3, 0])
    assert accepted_by_path(longer)["copy"].sum() == 3


def test_accepted_histogram_counts_steps_by_path_on_shared_bins() -> None:
    drawn = accepted_histogram(steps_table())
    copied = trace(drawn, "copy (n = 3, mean 4.67)")
    assert copied["y"][0] == 1
    assert copied["y"][7] == 2
    assert trace(drawn, "neural")["y"][3] == 1
    assert trace(drawn, "plain")["y"][0] == 1
    assert all(list(t.x) == list(range(21)) for t in drawn.data)
    only_plain = accepted_histogram(steps_table().query("path == 'plain'"))
    assert len(only_plain.data) == 1


def test_accepted_histogram_refuses_a_path_it_does_not_know() -> None:
    with pytest.raises(SwitchSDError, match="detour"):
        accepted_histogram(steps_table().assign(path="detour"))


def test_policy_speedups_are_sorted_with_vanilla_marked() -> None:
    drawn = policy_speedups(decoding())
    bars = drawn.data[0]
    assert list(bars.y) == ["vanilla", "CopySpec", "PLD", "SwitchSD"]
    assert list(bars.x) == [1.0, 1.15, 1.25, 1.34]
    assert list(bars.text)[-1] == "1.34×"
    assert drawn.layout.shapes[0].x0 == 1


@pytest.mark.parametrize(
    "draw",
    [
        figures.layer_sweep,
        figures.site_heatmap,
        accepted_by_probe_state,
        accepted_histogram,
        policy_speedups,
    ],
)
def test_an_empty_or_foreign_table_is_refused_in_words(
    draw: Callable[[pd.DataFrame], go.Figure],
) -> None:
    with pytest.raises(SwitchSDError, match="lacks"):
        draw(pd.DataFrame({"something": [1]}))


def test_figures_have_no_background_and_no_way_to_a_web_site() -> None:
    drawn = policy_speedups(decoding())
    assert drawn.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert FIGURE_CONFIG["showSendToCloud"] is False
    assert FIGURE_CONFIG["displaylogo"] is False
    assert "http" not in json.dumps(drawn.to_plotly_json(), default=str)
