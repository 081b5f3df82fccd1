"""Claims about decoding, judged by the steps of every policy on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...data.benchmarks import sets_for
from ...intervals import Estimate
from ..bench.measures import before_loops
from ..bench.methods import SPS
from .claim_steps import ratio_of_sums, speed_over
from .claims import BENCH, TRACE, Claim, Question

_BASELINES = ("pld", "copyspec", "eagle3", "bandit-ucb")
_SETS = sets_for("race")
_SPEEDUPS = {"humaneval": 2.31, "math500": 2.03, "cnndm": 1.83}


@dataclass(frozen=True)
class Measured:
    """Steps, and where they come from.

    Attributes:
        steps: set, prompt_id, policy, position, path, accepted, emitted, loop, and ms if times are
            known.
        note: live or replayed, and on what.
        hot: live steps at each temperature above 0.
    """

    steps: pd.DataFrame
    note: str
    hot: dict[float, pd.DataFrame]

    def of(self, name: str) -> pd.DataFrame:
        """The steps of one set."""
        return self.steps[self.steps["set"] == name]


def decoding_claims(counts: Measured | None, times: Measured | None) -> list[Claim]:
    """The rows about decoding.

    Args:
        counts: what accepted lengths and shares of steps are taken from; None: not measured yet.
        times: what speeds are taken from.
    """
    return [*_counted(counts), *_timed(times)]


def _counted(found: Measured | None) -> list[Claim]:
    before = None if found is None else replace(found, steps=before_loops(found.steps))

    def judged(question: Question, make: Callable[[Measured], Estimate | None]) -> Claim:
        if found is None or before is None:
            return question.answer(None)
        note, without = found.note, make(before)
        if without is not None:
            note += f"; without loops {_said(without)}"
        return question.answer(make(found), note)

    rows = [
        judged(
            Question(
                "in maths over half of CopySpec's copies are in vain (nothing accepted)",
                "§3.1", 0.5, TRACE, above=0.5,
            ),
            lambda m: ratio_of_sums(_copies(m.of("math500")), _vain, _one, ["copyspec"]),
        )
    ]  # fmt: skip
    for name, suffix, paper, where in (
        ("humaneval", "", (5.88, 1.83), "§4.1, Table 1"),
        ("humaneval", SPS, (4.37, 2.08), "§4.1, Table 2"),
        ("math500", SPS, (4.08, 2.05), "§4.1, Table 2"),
    ):
        draft = "SPS" if suffix else "EAGLE-3"
        rows.append(
            judged(
                Question(
                    f"longer accepted copies than CopySpec ({draft}, {name}; {paper[0]} against "
                    f"{paper[1]}, so the difference)",
                    where, paper[0] - paper[1], TRACE, above=0.0,
                ),
                lambda m, name=name, suffix=suffix: ratio_of_sums(  # type: ignore[misc]
                    _copies(m.of(name)), _accepted, _one,
                    ["switchsd" + suffix, "copyspec" + suffix], np.subtract,
                ),
            )
        )  # fmt: skip
    for name, paper in (("humaneval", (7.2, 14.3)), ("math500", (8.6, 17.7))):
        rows.append(
            judged(
                Question(
                    f"copies in fewer of its steps than CopySpec (SPS, {name}; {paper[0]} % against"
                    f" {paper[1]} %, so the ratio)",
                    "§4.1, Table 2", paper[0] / paper[1], TRACE, below=1.0,
                ),
                lambda m, name=name: ratio_of_sums(  # type: ignore[misc]
                    m.of(name), _copied, _one, ["switchsd" + SPS, "copyspec" + SPS], np.divide
                ),
            )
        )  # fmt: skip
    return rows


def _timed(found: Measured | None) -> list[Claim]:
    rows = [
        _least(
            Question("faster than EAGLE-3 on every set (the least ratio of speeds)",
                     "§4.1, Table 1", 1.0, BENCH, above=1.0),
            found, [(name, "switchsd", "eagle3") for name in _SETS], min,
        ),
        _least(
            Question("up to 15 % faster than EAGLE-3 (the largest gain of a set)", "§4.1, Table 1",
                     1.15, BENCH, above=1.0, reach=1.15),
            found, [(name, "switchsd", "eagle3") for name in _SETS], max,
        ),
        _least(
            Question("the fastest on every set (the least ratio to the best of PLD, CopySpec, "
                     "EAGLE-3 and BanditSpec)", "§4.1, Table 1", 1.0, BENCH, above=1.0),
            found, [(name, "switchsd", base) for name in _SETS for base in _BASELINES], min,
        ),
    ]  # fmt: skip
    for name, paper in _SPEEDUPS.items():
        question = Question(
            f"speedup over vanilla on {name}", "§4.1, Table 1", paper, BENCH, reach=paper
        )
        rows.append(_least(question, found, [(name, "switchsd", "vanilla")], min))
    rows += [
        _least(
            Question("BanditSpec is slower than SwitchSD on every set (the largest ratio; 0.99× "
                     "against 1.48× on Math500)", "§4.1", 0.99 / 1.48, BENCH, below=1.0),
            found, [(name, "bandit-ucb", "switchsd") for name in _SETS], max,
        ),
        _least(
            Question("holds with SPS: faster than SPS on every set (the least ratio; 13.09 against "
                     "12.35 tokens/s on HumanEval)", "§4.1, Table 2", 13.09 / 12.35, BENCH,
                     above=1.0),
            found, [(name, "switchsd" + SPS, "sps") for name in _SETS], min,
        ),
    ]  # fmt: skip
    hottest = max(found.hot, default=None) if found is not None else None
    hot = None
    if found is not None and hottest is not None:
        hot = Measured(found.hot[hottest], f"temperature {hottest:g}, sampled live", {})
    question = Question(
        "holds at high temperature: faster than EAGLE-3 (all sets)", "App. A", 1.0, BENCH, above=1.0
    )
    rows.append(_least(question, hot, [(None, "switchsd", "eagle3")], min))
    return rows


def _least(
    question: Question,
    found: Measured | None,
    pairs: Iterable[tuple[str | None, str, str]],
    choose: Callable[..., tuple[Estimate, str, pd.DataFrame, str, str]],
) -> Claim:
    """Judge by the least (or largest) ratio of speeds; every pair has to be there."""
    ratios = []
    for name, policy, base in pairs:
        steps = None if found is None else found.steps if name is None else found.of(name)
        ratio = None if steps is None else speed_over(steps, policy, base)
        if ratio is None or steps is None:
            return question.answer(None)
        ratios.append((ratio, name or "all sets", steps, policy, base))
    assert found is not None
    ratio, name, steps, policy, base = choose(ratios, key=lambda each: each[0].value)
    note = f"{name}, {policy} over {base}; {found.note}"
    without = speed_over(steps, policy, base, loops=False) if "loop" in steps else None
    if without is not None:
        note += f"; without loops {_said(without)}"
    return question.answer(ratio, note)


def _said(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f}–{found.high:.2f})"


def _copies(steps: pd.DataFrame) -> pd.DataFrame:
    return steps[steps["path"] == "copy"]


def _copied(steps: pd.DataFrame) -> pd.Series:
    return steps["path"] == "copy"


def _accepted(steps: pd.DataFrame) -> pd.Series:
    return steps["accepted"]


def _vain(steps: pd.DataFrame) -> pd.Series:
    return steps["accepted"] == 0


def _one(steps: pd.DataFrame) -> pd.Series:
    return pd.Series(1.0, index=steps.index)
