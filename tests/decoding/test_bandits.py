"""Bandit gates: the formulas, the better arm found, the same choices from the same seed."""

from __future__ import annotations

import math
import random

import pytest
from switchsd import SwitchSDError
from switchsd.decoding.gates.bandits import Exp3Gate, UcbGate
from switchsd.decoding.gates.gate import Observation, Outcome

BOTH = Observation(10, True, 3, None)
NONE = Observation(10, False, 0, None)


def play(gate, means: dict[str, float], rounds: int, seed: int = 0, without: float = 0.0):
    """Run a gate on made-up steps that emit 1…11 tokens around an arm's mean."""
    rng = random.Random(seed)
    gate.reset()
    taken = []
    for _ in range(rounds):
        choice = rng.random() >= without
        path = gate.decide(BOTH if choice else NONE)
        emitted = min(11, max(1, round(rng.gauss(means[path], 2))))
        gate.observe(Outcome(path, emitted - 1, emitted, 0.03 if path == "neural" else 0.04))
        if choice:
            taken.append(path)
        else:
            assert path == "neural"
    return taken


@pytest.mark.parametrize("gate", [UcbGate(L=11), Exp3Gate(L=11)])
@pytest.mark.parametrize("better", ["copy", "neural"])
def test_finds_the_better_arm(gate, better: str) -> None:
    worse = "neural" if better == "copy" else "copy"
    taken = play(gate, {better: 9.0, worse: 2.0}, 2000)
    share = taken[-500:].count(better) / 500
    assert share > 0.8
    assert share > taken[:100].count(better) / 100  # it learned; it was not so from the start


def test_ucb_plays_each_arm_once_first() -> None:
    gate = UcbGate()
    # copy pays best and neural is played second all the same
    assert play(gate, {"copy": 11.0, "neural": 1.0}, 2) == ["copy", "neural"]
    gate.reset()
    assert gate.decide(NONE) == "neural"  # no choice, so no play
    gate.observe(Outcome("neural", 0, 1, 0.03))
    assert gate.plays == {"copy": 0, "neural": 0}
    assert gate.decide(BOTH) == "copy"
    gate.observe(Outcome("copy", 4, 5, 0.03))
    assert gate.decide(BOTH) == "neural"


def test_ucb_bound_is_the_papers_formula() -> None:
    gate = UcbGate(L=6, delta=0.05)
    for path, emitted in (("copy", 6), ("neural", 2), ("copy", 3)):
        gate.decide(BOTH)
        gate._chosen = path
        gate.observe(Outcome(path, emitted - 1, emitted, 0.03))
    n, t = 2, 4
    radius = math.sqrt((1 + n) / n**2 * (1 + 2 * math.log(2 * t**2 * math.sqrt(1 + n) / 0.05)))
    assert gate.bound("copy") == pytest.approx(4.5 + 3 * radius)


def test_exp3_probabilities_are_the_papers_formula() -> None:
    gate = Exp3Gate(L=10)
    assert gate.probabilities() == {"copy": 0.5, "neural": 0.5}
    path = gate.decide(BOTH)
    gate.observe(Outcome(path, 2, 3, 0.03))
    other = "neural" if path == "copy" else "copy"
    weight = math.exp(-math.sqrt(math.log(2) / (2 * 2)) * (1 - 0.3) / 0.5)
    assert gate.probabilities()[path] == pytest.approx(weight / (weight + 1))
    assert gate.probabilities()[other] == pytest.approx(1 / (weight + 1))


def test_exp3_weighs_a_loss_by_how_likely_the_arm_was() -> None:
    """Without it the arm that is played more looks worse for being played more."""
    means = {"copy": 4.0, "neural": 4.0}
    shares = [play(Exp3Gate(seed=s), means, 400, s).count("copy") / 400 for s in range(30)]
    assert 0.35 < sum(shares) / len(shares) < 0.65


@pytest.mark.parametrize("gate", [UcbGate(), Exp3Gate()])
def test_steps_without_a_choice_teach_nothing(gate) -> None:
    means = {"copy": 9.0, "neural": 2.0}
    play(gate, means, 300, without=0.5)
    assert 100 < sum(gate.plays.values()) < 200
    before = dict(gate.plays)
    gate.decide(NONE)
    gate.observe(Outcome("neural", 10, 11, 0.01))
    assert gate.plays == before


def test_same_seed_same_choices_and_every_prompt_anew() -> None:
    means = {"copy": 5.0, "neural": 4.0}
    gate = Exp3Gate(seed=3)
    first = play(gate, means, 200)
    assert play(gate, means, 200) == first  # reset starts the draws again
    assert play(Exp3Gate(seed=3), means, 200) == first
    assert play(Exp3Gate(seed=4), means, 200) != first
    assert play(UcbGate(), means, 200) == play(UcbGate(), means, 200)


def test_throughput_takes_the_cheaper_of_two_equal_arms() -> None:
    def seconds(outcome: Outcome) -> float:
        return 0.5 if outcome.path == "copy" else 0.05

    even = {"copy": 6.0, "neural": 6.0}
    for gate in (UcbGate(reward="throughput", seconds=seconds),
                 Exp3Gate(reward="throughput", seconds=seconds)):  # fmt: skip
        taken = play(gate, even, 1500)
        assert taken[-500:].count("neural") > 400
    # without the callable the step's own seconds count
    clocked = UcbGate(reward="throughput")
    clocked.observe(Outcome("neural", 0, 1, 1.0))
    assert not sum(clocked.plays.values())
    clocked.decide(BOTH)
    clocked.observe(Outcome("copy", 4, 5, 0.5))
    assert clocked._total["copy"] == pytest.approx(10.0)


def test_bad_options_are_named() -> None:
    for message, make in {
        "L = 0": lambda: UcbGate(0),
        "delta = 0": lambda: UcbGate(delta=0),
        "unknown reward 'speed'": lambda: Exp3Gate(reward="speed"),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(SwitchSDError, match=message):
            make()
