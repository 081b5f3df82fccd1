"""Figures of the causal tests draw the numbers they are given, and refuse another table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.figures import causal as draw


def ablation() -> pd.DataFrame:
    rows = []
    for kind, k, value in (("none", 0, 0.9), ("induction", 1, 0.8), ("induction", 10, 0.6),
                           ("random", 1, 0.9), ("random", 10, 0.88)):  # fmt: skip
        rows.append({"heads": kind, "k": k, "probe_auroc": value,
                     "probe_auroc_low": value - 0.1, "probe_auroc_high": value + 0.05})  # fmt: skip
    return pd.DataFrame(rows)


def units() -> pd.DataFrame:
    return pd.DataFrame(
        {"target": ["copy", "copy", "probe"], "layer": [3, 4, 5], "head": [1, -1, 2],
         "region": ["reader", "source", "copy"], "gradient": [1.0, -0.5, 7.0],
         "exact": [1.5, -0.25, 8.0]}
    )  # fmt: skip


def shares() -> pd.DataFrame:
    rows = []
    for layer, share in ((1, 0.5), (2, -0.7), (3, 0.01)):
        row = {"target": "copy", "layer": layer, "head": 0, "share": share}
        row |= {f"at_{name}": 0.0 for name in draw.REGIONS} | {"at_reader": share}
        rows.append(row)
    return pd.DataFrame(rows)


def test_ablation_draws_intervals_and_the_clean_model() -> None:
    drawn = draw.ablation_curve(ablation(), "probe_auroc")
    first, second = drawn.data
    assert list(first.x) == [1, 10]
    assert list(first.y) == [0.8, 0.6]
    np.testing.assert_allclose(first.error_y.arrayminus, 0.1)
    np.testing.assert_allclose(first.error_y.array, 0.05)
    assert first.line.dash != second.line.dash
    assert drawn.layout.shapes[0].y0 == 0.9
    assert list(drawn.layout.xaxis.tickvals) == [1, 10]


def test_dose_response_has_a_line_a_direction() -> None:
    rows = [
        {"direction": name, "dose": dose, "draws": draws, "kept": at, "kept_low": at - 0.1,
         "kept_high": at + 0.1}
        for name, draws, at in (("probe", 1, 0.5), ("random", 3, 0.4))
        for dose in (4.0, -4.0, 0.0)
    ]  # fmt: skip
    drawn = draw.dose_response(pd.DataFrame(rows), "kept")
    assert [trace.name for trace in drawn.data] == ["probe", "random, mean of 3"]
    assert list(drawn.data[0].x) == [-4, 0, 4]


def test_agreement_is_one_targets_units() -> None:
    drawn = draw.patching_agreement(units(), "copy")
    points = {text: (x, y) for trace in drawn.data[:-1]
              for text, x, y in zip(trace.text, trace.x, trace.y, strict=True)}  # fmt: skip
    assert points == {"head 3.1": (1.0, 1.5), "MLP 4": (-0.5, -0.25)}
    assert list(drawn.data[-1].x) == list(drawn.data[-1].y) == [-0.5, 1.0]
    with pytest.raises(SwitchSDError, match="nothing was patched"):
        draw.patching_agreement(units()[:2], "probe")


def test_regions_show_the_largest_by_size() -> None:
    drawn = draw.patching_regions(shares(), "copy", count=2)
    assert list(drawn.data[0].y) == ["head 2.0", "head 1.0"]
    at_end = next(trace for trace in drawn.data if trace.name == "end of the copy")
    assert list(at_end.x) == [-0.7, 0.5]
    assert len({trace.marker.pattern.shape for trace in drawn.data}) == 5


def test_matched_scores_stand_beside_the_unmatched() -> None:
    table = pd.DataFrame(
        {"score": ["probe", "surface model"], "auroc": [0.8, 0.7], "auroc_low": [0.75, 0.6],
         "auroc_high": [0.85, 0.75], "auroc_within": [0.65, 0.5], "auroc_within_low": [0.6, 0.45],
         "auroc_within_high": [0.7, 0.55]}
    )  # fmt: skip
    drawn = draw.matched_scores(table)
    assert list(drawn.data[1].x) == [0.5, 0.65]
    assert list(drawn.data[1].y) == ["surface model", "probe"]
    np.testing.assert_allclose(drawn.data[1].error_x.array, 0.05)


def test_matched_parts_are_told_apart_by_kind() -> None:
    table = pd.DataFrame(
        {"part": ["head 1.0", "MLP 2", "bias"], "kind": ["head", "mlp", "bias"],
         "share": [0.6, 0.3, 0.0], "share_low": [0.5, 0.2, 0.0], "share_high": [0.7, 0.4, 0.0],
         "auroc_within": [0.7, 0.6, 0.5]}
    )  # fmt: skip
    drawn = draw.matched_part_shares(table, count=2)
    assert list(drawn.data[0].y) == ["MLP 2", "head 1.0"]
    assert list(drawn.data[0].marker.symbol) == ["square", "circle"]


@pytest.mark.parametrize(
    "make",
    [
        lambda table: draw.ablation_curve(table, "probe_auroc"),
        lambda table: draw.dose_response(table, "kept"),
        lambda table: draw.patching_agreement(table, "copy"),
        lambda table: draw.patching_regions(table, "copy"),
        draw.matched_scores,
        draw.matched_part_shares,
    ],
)
def test_another_table_is_refused_in_words(make: Callable[[pd.DataFrame], go.Figure]) -> None:
    with pytest.raises(SwitchSDError, match="lacks"):
        make(pd.DataFrame({"something": [1]}))
