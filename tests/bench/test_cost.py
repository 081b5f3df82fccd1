"""Latency profiles: interpolation, JSON, refusals, and measuring one on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from switchsd import SwitchSDError
from switchsd.analysis.cost.measure import ProfilePlan, measure_profile
from switchsd.analysis.cost.profile import LatencyProfile
from switchsd.analysis.cost.surface import Surface, rising
from switchsd.decoding.drafters.draft_model import DraftModel
from switchsd.decoding.eagle3.drafter import Eagle3
from switchsd.decoding.eagle3.head import random_head
from switchsd.decoding.exactness.greedy import noisy_copy
from switchsd.decoding.gates.gate import Outcome
from switchsd.probing.lens import Lens
from tiny_models import probe_for
from tiny_traces import SHAPE, profile_for


def surface() -> Surface:
    ms = np.array([[10.0, 12.0, 20.0], [10.0, 14.0, 24.0], [16.0, 20.0, 30.0]])
    return Surface(np.array([1.0, 2.0, 6.0]), np.array([10.0, 20.0, 100.0]), ms)


def test_interpolates_between_points_and_goes_on_beyond() -> None:
    found = surface()
    assert found.at([1, 2, 6], [10, 20, 100]).tolist() == [10.0, 14.0, 30.0]
    assert found.at(4, 20) == pytest.approx(17.0)
    assert found.at(4, 60) == pytest.approx((17 + 27) / 2)
    assert found.at(10, 10) == pytest.approx(22.0)  # the last slope goes on
    assert found.at(1, 180) == pytest.approx(28.0)
    assert found.at(1, 0) == found.at(1, 10)  # the first value holds
    grid = found.at(np.arange(1, 30)[:, None], np.arange(0, 400))
    assert grid.shape == (29, 400)
    assert (np.diff(grid, axis=0) >= 0).all()
    assert (np.diff(grid, axis=1) >= 0).all()
    point = Surface(np.array([5.0]), np.array([1.0]), np.array([[3.0]]))
    assert point.at([1, 9], [1, 50]).tolist() == [3.0, 3.0]


def test_json_there_and_back(tmp_path: Path) -> None:
    profile = profile_for()
    profile.save(tmp_path / "p.json")
    again = LatencyProfile.load(tmp_path / "p.json")
    assert again.describe() == profile.describe()
    assert again.verify(7, 90) == profile.verify(7, 90)
    assert again.draft("sps", 3, 12) == profile.draft("sps", 3, 12)
    least = {"verify": {"tokens": [1, 8], "context": [100], "ms": [[20], [22.5]]}}
    small = LatencyProfile.read(least)
    assert small.overhead_ms == 0
    with pytest.raises(SwitchSDError, match="lacks draft of sps, lookup_ms"):
        small.require(drafts=["sps"], lookup=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verify": None}, "verify"),
        ({"verify": {"tokens": [1], "context": [1]}}, "ms"),
        ({"verify": {"tokens": [1, 1], "context": [1], "ms": [[1], [1]]}}, "rise"),
        ({"verify": {"tokens": [2, 1], "context": [1], "ms": [[1], [1]]}}, "rise"),
        ({"verify": {"tokens": [1, 2], "context": [1], "ms": [[2], [1]]}}, "fall along the first"),
        ({"verify": {"tokens": [1], "context": [1, 2], "ms": [[2, 1]]}}, "fall along the second"),
        ({"verify": {"tokens": [1], "context": [1], "ms": [[-1]]}}, "negative"),
        ({"verify": {"tokens": [1], "context": [1], "ms": [[float("nan")]]}}, "no number"),
        ({"verify": {"tokens": [1], "context": [1], "ms": [[1, 2]]}}, "times"),
        ({"verify": {"tokens": [], "context": [1], "ms": []}}, "at least one"),
        ({"verify": {"tokens": ["a"], "context": [1], "ms": [[1]]}}, "lists of numbers"),
        ({"draft": {"sps": {"gamma": [1], "pending": [1], "ms": [[-2]]}}}, "draft of sps"),
        ({"draft": [1]}, "draft"),
        ({"lookup_ms": -1}, "lookup_ms = -1"),
        ({"gate_ms": "fast"}, "gate_ms"),
        ({"overhead_ms": float("inf")}, "overhead_ms"),
        ({"schema": 99}, "upgrade"),
    ],
)
def test_bad_profiles_are_named(tmp_path: Path, change: dict, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**profile_for().describe(), **change}))
    with pytest.raises(SwitchSDError, match=said) as caught:
        LatencyProfile.load(path)
    assert str(path) in str(caught.value)


def test_files_that_are_no_profile_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    (tmp_path / "b.json").write_text("{")
    for name, said in (("a", "no latency profile"), ("b", "damaged"), ("c", "cannot read")):
        with pytest.raises(SwitchSDError, match=said):
            LatencyProfile.load(tmp_path / f"{name}.json")


def test_seconds_of_an_outcome() -> None:
    profile = profile_for()
    cost = profile.seconds("eagle3", 5)
    copied = cost(Outcome("copy", 2, 3, 9.9, 10, 50))
    assert 1e3 * copied == pytest.approx(0.55 + float(profile.verify(11, 49)))
    drafted = cost(Outcome("neural", 2, 3, 9.9, 4, 50))
    ms = 0.55 + float(profile.verify(5, 49)) + float(profile.draft("eagle3", 4, 1))
    assert 1e3 * drafted == pytest.approx(ms)
    plain = profile.seconds(None)(Outcome("neural", 0, 1, 9.9, 0, 50))
    assert 1e3 * plain == pytest.approx(0.55 + float(profile.verify(1, 49)))
    with pytest.raises(SwitchSDError, match="lacks draft of sps"):
        profile_for([]).seconds("sps", 4)


def test_rising_evens_out_noise_without_a_bias() -> None:
    rng = np.random.default_rng(0)
    slow = np.add.outer(np.arange(13.0), np.arange(4.0)) / 20
    bias = []
    for _ in range(200):
        found = rising(slow + rng.normal(0, 0.2, slow.shape))
        assert (np.diff(found, axis=0) >= 0).all()
        assert (np.diff(found, axis=1) >= 0).all()
        bias.append((found - slow).mean())
    assert abs(np.mean(bias)) < 0.01
    assert np.allclose(rising(slow), slow)


def test_measures_a_tiny_model(tiny: Callable[..., Lens], tmp_path: Path) -> None:
    lens = tiny("llama")
    head, small = random_head(lens), noisy_copy(lens)
    drafters = {
        "eagle3": lambda: Eagle3(head, lens, gamma=10),
        "sps": lambda: DraftModel(small, lens, gamma=10),
        "tree_8_3_2": lambda: Eagle3(head, lens, tree=SHAPE),
    }
    plan = ProfilePlan(
        tokens=(1, 4, 16), contexts=(16, 64, 5000), gammas=(1, 4), pending=(1, 8, 5000), repeats=3
    )
    said: list[tuple[str, int, int]] = []
    profile = measure_profile(
        lens, drafters, probe_for(lens), plan, progress=lambda *now: said.append(now)
    )
    profile.save(tmp_path / "p.json")
    assert LatencyProfile.load(tmp_path / "p.json").describe() == profile.describe()
    assert profile.verification.rows.tolist() == [1, 4, 16]
    assert profile.verification.columns.tolist() == [16, 64]  # what fits the context
    assert (profile.verification.ms > 0).all()
    assert set(profile.drafts) == set(drafters)
    assert profile.drafts["eagle3"].rows.tolist() == [1, 4]
    assert profile.drafts["eagle3"].columns.tolist() == [1, 8]
    assert profile.drafts["tree_8_3_2"].rows.tolist() == [4]
    # four steps of a drafter take longer than one, whatever else runs on the machine
    assert profile.drafts["sps"].ms[1, 0] > profile.drafts["sps"].ms[0, 0]
    assert profile.lookup_ms > 0
    assert profile.gate_ms > 0
    assert profile.overhead_ms > 0
    about = profile.about
    assert about["fingerprint"] == lens.fingerprint
    assert about["dtype"] == "float32"
    assert about["threads"] >= 1
    assert about["cores"] >= 1
    assert np.shape(about["spread"]["verify"]) == (3, 2)
    assert said[-1][1] == said[-1][2]
    without = measure_profile(lens, {}, None, plan)
    assert without.gate_ms is None
    with pytest.raises(SwitchSDError, match="lacks draft of eagle3, gate_ms"):
        without.require(drafts=["eagle3"], gate=True)
    with pytest.raises(SwitchSDError, match="repeats = 0"):
        ProfilePlan(repeats=0)
