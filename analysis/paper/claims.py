"""The paper's quantitative claims against what was measured here: one row a claim.

Verdicts: "holds" where the interval lies wholly on the claim's side (of a number to be reached:
where it reaches it), "differs" where it does not,
"not testable here" where the claim is about what one model on this machine cannot show, and "not
measured yet" with the command that would measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from ...intervals import Estimate

HOLDS, DIFFERS = "holds", "differs"
UNTESTABLE, UNMEASURED = "not testable here", "not measured yet"

PROBING = "switchsd probe study --all"
TRACE = "switchsd trace"
PROFILE = "switchsd profile; switchsd claims --profile profile.json"
BENCH = "switchsd bench"


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    Attributes:
        claim: in words.
        section: of the paper.
        paper: the paper's number; None where it gives none.
        ours: the same on this model; None if it was not measured.
        low: lower end of the 95 % interval; None where there is none.
        high: upper end.
        verdict: see the module's text.
        command: that measures it, or measured it.
        note: what else to know.
    """

    claim: str
    section: str
    paper: float | None
    ours: float | None
    low: float | None
    high: float | None
    verdict: str
    command: str
    note: str = ""


COLUMNS = tuple(Claim.__dataclass_fields__)


@dataclass(frozen=True)
class Question:
    """A claim to be judged.

    Attributes:
        claim: in words.
        section: of the paper.
        paper: the paper's number; None where it gives none.
        command: that measures it.
        above: it holds if ours is above this.
        below: it holds if ours is below this.
        reach: it holds if ours is not shown to be less than this.
    """

    claim: str
    section: str
    paper: float | None
    command: str
    above: float = -np.inf
    below: float = np.inf
    reach: float = -np.inf

    def answer(self, found: Estimate | None, note: str = "", *, command: str = "") -> Claim:
        """Judge it by what was found; None: not measured yet.

        An estimate without an interval (NaN) is judged by itself. An infinite one (a ratio over
        nothing) is judged too, and has no number.
        """
        command = command or self.command
        if found is None or np.isnan(found.value):
            return Claim(
                self.claim, self.section, self.paper, None, None, None, UNMEASURED, command, note
            )
        low, high = (end if np.isfinite(end) else None for end in (found.low, found.high))
        least = found.value if low is None else low
        most = found.value if high is None else high
        under = most < self.below or self.below == np.inf
        fits = least > self.above and under and most >= self.reach
        verdict = HOLDS if fits else DIFFERS
        ours = found.value if np.isfinite(found.value) else None
        if ours is None:
            note = "; ".join(filter(None, [note, "infinite: there is nothing to divide by"]))
        if not fits and self.above < found.value < self.below and most >= self.reach:
            note = f"{note}; " if note else ""
            note += "the estimate is on the claim's side, its interval reaches over"
        return Claim(self.claim, self.section, self.paper, ours, low, high, verdict, command, note)


def untestable() -> list[Claim]:
    """Claims that one small model on one machine cannot show, and why."""
    why = {
        ("SwitchSD is the fastest in all 9 configurations of three models and three sets",
         "§4.1, Table 1", 9.0): "three large models on a GPU are asked for",
        ("BanditSpec over-selects copying on Llama-3.3-70B: 91 % of steps on Math500 with 0.28 "
         "accepted", "§4.1", 0.91): "about a 70B model",
        ("the best lookahead of Llama-3.3-70B falls from 7 to 5", "§4.2.2, Table 3", -2.0):
            "about a 70B model; the claim about γ itself has a row of its own",
    }  # fmt: skip
    return [
        Claim(claim, section, paper, None, None, None, UNTESTABLE, "", note)
        for (claim, section, paper), note in why.items()
    ]


def claims_table(claims: Iterable[Claim]) -> pd.DataFrame:
    """One row a claim, columns as `Claim` has them."""
    return pd.DataFrame([asdict(claim) for claim in claims], columns=list(COLUMNS))


def shown_claims(table: pd.DataFrame) -> pd.DataFrame:
    """`claims_table` for people."""

    def number(value: float | None) -> str:
        return "–" if value is None or pd.isna(value) else f"{value:.3g}"

    interval: Callable[[pd.Series], str] = lambda row: (  # noqa: E731
        "" if pd.isna(row["low"]) else f" ({number(row['low'])}–{number(row['high'])})"
    )
    return pd.DataFrame(
        {
            "claim": table["claim"],
            "section": table["section"],
            "paper": [number(value) for value in table["paper"]],
            "here": [number(row["ours"]) + interval(row) for _, row in table.iterrows()],
            "verdict": table["verdict"],
            "note": table["note"],
            "command": table["command"],
        }
    )
