"""Figures 2 and 3: the tables they draw, counted by hand, and what is drawn of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.figures.acceptance import (
    accepted_by_probe,
    accidental_table,
    attempts_in_vain,
)
from switchsd.analysis.paper.claim_steps import copy_attempts
from switchsd.analysis.replay.acceptance import accepted_by_state, both_paths
from switchsd.analysis.replay.replay import replay
from switchsd.analysis.replay.settings import Setting
from tiny_traces import made_up


def paths_table() -> pd.DataFrame:
    """Two steps with the probe on (one cut by the budget), one off, one without a candidate, and
    three positions inside a copy."""
    rows = [
        (True, "on", 4, 0, True),
        (False, "on", 3, 1, True),
        (False, "on", 2, 2, True),
        (False, "off", 1, 0, True),
        (True, "off", 0, 2, True),
        (True, "none", 0, 1, True),
        (True, "on", 1, 0, False),
    ]
    table = pd.DataFrame(rows, columns=["step", "state", "copy", "neural", "whole"])
    return table.assign(set="s", prompt_id="p", position=range(7))


def test_steps_and_positions_are_counted_apart() -> None:
    shares = accepted_by_state(paths_table(), max_copy=4)
    counts = shares.set_index(["counted", "path", "state", "accepted"]).sort_index()["count"]
    assert counts["steps", "copy", "on"].tolist() == [0, 0, 0, 0, 1]
    assert counts["steps", "copy", "off"].tolist() == [1, 0, 0, 0, 0]
    assert counts["positions", "copy", "on"].tolist() == [0, 0, 1, 1, 1]
    assert counts["positions", "copy", "off"].tolist() == [1, 1, 0, 0, 0]
    assert ("steps", "copy", "none") not in counts.index.droplevel(3)
    assert counts["steps", "neural", "on"].tolist() == [2, 0, 0]  # the budget cuts no chain apart
    assert counts["steps", "neural", "none"].tolist() == [0, 1, 0]
    assert counts["positions", "neural", "on"].tolist() == [2, 1, 1]
    share = shares.set_index(["counted", "path", "state", "accepted"]).sort_index()["share"]
    assert share["positions", "copy", "on", 3] == pytest.approx(1 / 3)
    assert share.groupby(level=[0, 1, 2]).sum().to_numpy() == pytest.approx(1.0)


def test_figure_3_draws_each_panel() -> None:
    shares = accepted_by_state(paths_table(), max_copy=4)
    drawn = accepted_by_probe(shares)
    bars = {(bar.xaxis, bar.legendgroup): bar for bar in drawn.data}
    # panels x, x2: steps (copy, neural); x3, x4: positions
    assert set(bars) == {
        *((axis, state) for axis in ("x", "x3") for state in ("on", "off")),
        *((axis, state) for axis in ("x2", "x4") for state in ("on", "off", "none")),
    }
    assert list(bars["x", "on"].y) == [0, 0, 0, 0, 1]
    assert list(bars["x3", "on"].y) == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert list(bars["x4", "none"].customdata) == [0, 1, 0]
    assert len({bar.marker.color for bar in drawn.data}) == 3
    assert len({bar.marker.pattern.shape for bar in drawn.data}) == 3
    assert sum(bar.showlegend for bar in drawn.data) == 3
    with pytest.raises(SwitchSDError, match="lacks share"):
        accepted_by_probe(shares.drop(columns="share"))


def test_both_paths_are_those_of_the_run() -> None:
    trace = made_up(prompts=4, tokens=50, vocab=20)
    setting = Setting("switchsd", n=1, D=20, tau=0.5, draft="eagle3", gamma=5)
    paths = both_paths(trace, setting)
    steps = replay(trace, setting).steps()
    mine = paths[paths["step"]]
    assert mine["position"].tolist() == steps["position"].tolist()
    assert 0 < len(mine) < len(paths)
    copied = (steps["path"] == "copy").to_numpy()
    assert set(mine["state"][copied]) == {"on"}
    assert mine["copy"][copied].tolist() == steps["accepted"][copied].tolist()
    assert mine["neural"][~copied].tolist() == steps["accepted"][~copied].tolist()
    offered = (trace.positions["match_length_n1"] > 0).to_numpy()
    assert ((paths["state"] != "none").to_numpy() == offered).all()
    assert ((paths["state"] == "on").to_numpy() == (offered & (trace.score >= 0.5))).all()
    assert (paths["whole"] == (trace.limit >= 20)).all()
    assert not paths["whole"].all()
    with pytest.raises(SwitchSDError, match="not of copyspec"):
        both_paths(trace, Setting("copyspec"))


def test_figure_2_shows_the_examples_as_they_are() -> None:
    examples = pd.DataFrame(
        {
            "set": ["math500"], "prompt_id": ["p"], "position": [9], "match_length": [3],
            "score": [0.125], "source": [4], "earlier": ["if n < 3\n"], "copied": ["then"],
            "before": ["and n < 3"], "text": ["holds"],
        }
    )  # fmt: skip
    cells = accidental_table(examples).data[0].cells.values
    assert [list(column) for column in cells] == [
        ["math500"],
        [3],
        ["0.12"],
        ["…if n &lt; 3⏎<b>then</b>…"],
        ["…and n &lt; 3<b>holds</b>…"],
    ]
    blind = accidental_table(examples.assign(score=np.nan)).data[0].cells.values
    assert list(blind[2]) == ["–"]


def test_attempts_are_counted_by_policy_and_set() -> None:
    steps = pd.DataFrame(
        [
            ("a", "copyspec", "copy", 0),
            ("a", "copyspec", "copy", 0),
            ("a", "copyspec", "copy", 2),
            ("a", "copyspec", "neural", 0),
            ("a", "switchsd", "copy", 0),
            ("a", "switchsd", "copy", 1),
            ("b", "copyspec", "copy", 3),
            ("b", "switchsd", "neural", 3),
        ],
        columns=["set", "policy", "path", "accepted"],
    )
    table = copy_attempts(steps).set_index(["policy", "set"])
    assert table.loc[("copyspec", "a"), ["attempts", "in_vain"]].tolist() == [3, 2]
    assert table.loc[("switchsd", "a"), "share"] == 0.5
    assert table.loc[("switchsd", "b"), "attempts"] == 0
    assert np.isnan(table.loc[("switchsd", "b"), "share"])
    drawn = attempts_in_vain(table.reset_index())
    bars: dict[str, go.Bar] = {bar.name: bar for bar in drawn.data}
    assert list(bars["CopySpec"].y) == pytest.approx([2 / 3, 0])
    assert list(bars["CopySpec"].customdata) == [3, 1]
