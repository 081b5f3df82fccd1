"""Steering moves exactly what it should, from where it should, and 0 is nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_copy import OUT, WIDTH, planted_model, planted_probe, planted_texts
from switchsd import SwitchSDError
from switchsd.analysis.causal.copy_texts import CopyTexts
from switchsd.analysis.causal.steering import directions, site_spread, steer, steering
from switchsd.analysis.causal.teacher_forced import teacher_forced
from switchsd.probing.lens import Lens

SITE = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def lens() -> Lens:
    return planted_model(noise=0.01)


@pytest.fixture(scope="module")
def texts() -> CopyTexts:
    return planted_texts()


def towards(token: int) -> torch.Tensor:
    vector = torch.zeros(WIDTH)
    vector[OUT.start + token] = 1.0
    return vector


def test_it_starts_at_the_prompts_last_token_but_one(lens: Lens, texts: CopyTexts) -> None:
    clean, before = teacher_forced(lens, texts, None)
    moved, after = teacher_forced(lens, texts, None, steering(50 * towards(9), SITE, texts))
    start = np.array([texts.start(row) for row in texts.elsewhere["row"]])
    earlier = texts.elsewhere["position"].to_numpy() <= start - 2
    np.testing.assert_array_equal(before["log_prob"][earlier], after["log_prob"][earlier])
    changed = ~np.isclose(before["log_prob"][~earlier], after["log_prob"][~earlier], atol=1e-3)
    assert changed.all()
    is_nine = texts.tokens["id"].to_numpy() == 9
    np.testing.assert_array_equal(moved["hit"], is_nine)
    assert clean["hit"].sum() > moved["hit"].sum()


def test_dose_response_and_its_control(lens: Lens, texts: CopyTexts) -> None:
    away = -sum(towards(token) for token in range(1, 15))
    quiet = torch.zeros(WIDTH)
    quiet[-1] = 1.0  # read by nothing but the norm's scale
    vectors = {"away": [away / away.norm()], "control": [quiet, -quiet]}
    table = steer(lens, texts, SITE, [0, 4, -4], vectors, 1.0).set_index(["direction", "dose"])
    assert len(table) == 6
    assert table.loc[("away", 0.0), "kept_change"] == 0
    assert table.loc[("control", 4.0), "draws"] == 2
    clean = table.loc[("away", 0.0), "kept_probability"]
    assert clean > 0.5
    drop = clean - table.loc[("away", 4.0), "kept_probability"]
    assert drop > 0.1
    assert table.loc[("away", 4.0), "kept_probability_change"] == pytest.approx(-drop)
    assert table.loc[("control", 4.0), "kept"] == table.loc[("control", 0.0), "kept"]


def test_the_unit_is_the_spread_of_training_text(lens: Lens, texts: CopyTexts) -> None:
    probe = planted_probe(lens)
    spread = site_spread(lens, texts, probe)
    rows = []
    for row, position in texts.tokens[["row", "position"]].to_numpy().tolist():
        ids = torch.tensor([texts.ids(row)])
        stream = lens.forward(ids, sites=[SITE], logits="none").streams[SITE]
        rows.append(stream[0, position - 1])
    X, copied = torch.stack(rows), torch.from_numpy(texts.tokens["copied"].to_numpy())
    assert spread.std == pytest.approx(float(X.var(0).mean().sqrt()), rel=1e-4)
    weight = probe.weight / probe.weight.norm()
    assert spread.along_probe == pytest.approx(float((X @ weight).std()), rel=1e-4)
    between = X[copied].mean(0) - X[~copied].mean(0)
    torch.testing.assert_close(spread.between, between / between.norm(), rtol=1e-3, atol=1e-4)
    found = directions(probe, spread, n_random=3, seed=0)
    assert {name: len(vectors) for name, vectors in found.items()} == {
        "probe": 1, "difference of means": 1, "random": 3,
    }  # fmt: skip
    for vectors in found.values():
        for vector in vectors:
            assert float(vector.norm()) == pytest.approx(1, abs=1e-5)


def test_a_probe_without_a_direction_is_named(lens: Lens, texts: CopyTexts) -> None:
    probe = planted_probe(lens)
    spread = site_spread(lens, texts, probe)
    object.__setattr__(probe, "weight", torch.zeros(WIDTH))
    with pytest.raises(SwitchSDError, match="no direction"):
        directions(probe, spread, n_random=1, seed=0)
