"""Claims that need both paths at every step, or every lookahead: judged by a trace."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...intervals import Counts, Estimate, combined, draw, ratio
from ..cost.profile import LatencyProfile
from ..replay.acceptance import both_paths
from ..replay.replay import replay
from ..replay.settings import Setting
from ..traces.columns import GAMMA
from ..traces.trace import CounterfactualTrace
from .claims import PROFILE, TRACE, Claim, Question

_SET, _LONGEST = "humaneval", 20

_YIELD = Question(
    "6.3 times as many copies of full length (20 tokens) with the probe on: 30.0 % against 4.7 % "
    "(HumanEval, steps of the run)", "§4.2.1, Figure 3", 6.3, TRACE, above=1.0,
)  # fmt: skip
_LENGTH = Question(
    "copies are longer with the probe on than off (difference of the mean accepted lengths)",
    "§4.2.1, Figure 3", None, TRACE, above=0.0,
)  # fmt: skip
_GAMMA = Question(
    "the best lookahead is lower inside SwitchSD than for EAGLE-3 alone (difference, all sets)",
    "§4.2.2, Table 3", -2.0, PROFILE, below=0.0,
)  # fmt: skip


def trace_claims(trace: CounterfactualTrace | None, profile: LatencyProfile | None) -> list[Claim]:
    """The rows about regimes and lookahead.

    Args:
        trace: with a probe's scores, HumanEval and EAGLE-3; what it lacks is not measured yet.
        profile: what steps cost, for the lookahead.
    """
    paths = None if trace is None else _paths(trace)
    if paths is None:
        rows = [_YIELD.answer(None), _LENGTH.answer(None)]
    else:
        share = {state: _sums(paths, state)[:, 0].sum() for state in ("on", "off")}
        count = {state: _sums(paths, state)[:, 2].sum() for state in ("on", "off")}
        note = "; ".join(
            f"{state}: {share[state] / max(count[state], 1):.1%} of {count[state]:.0f}"
            for state in share
        )
        rows = [
            _YIELD.answer(_compared(paths, 0, np.divide), note),
            _LENGTH.answer(_compared(paths, 1, np.subtract), note),
        ]
    gamma = None
    if trace is not None and profile is not None and _can(trace, "eagle3"):
        gamma = best_gamma_shift(trace, profile)
    return [*rows, _GAMMA.answer(gamma, "by replay, chosen on the prompts it is measured on")]


def best_gamma_shift(
    trace: CounterfactualTrace, profile: LatencyProfile, kind: str = "eagle3"
) -> Estimate:
    """Fastest γ inside SwitchSD minus that of the draft alone, pooled over prompts.

    Raises:
        SwitchSDError: what `replay` raises.
    """
    inside, alone = (
        np.stack(
            [
                replay(trace, Setting(name, draft=kind, gamma=gamma), profile=profile).prompt_ms()
                for gamma in range(1, GAMMA + 1)
            ]
        )
        for name in ("switchsd", kind)
    )

    def shift(counts: Counts) -> np.ndarray:
        inner, outer = ((counts @ ms.T).argmin(axis=-1) for ms in (inside, alone))
        return (inner - outer).astype(float)

    return draw(shift, len(trace.prompts), least=1).estimate()


def _paths(trace: CounterfactualTrace) -> pd.DataFrame | None:
    keep = (trace.prompts["set"] == _SET).to_numpy()
    if not keep.any() or not _can(trace, None):
        return None
    draft = "eagle3" if "eagle3" in trace.drafts else "none"
    setting = Setting("switchsd", D=_LONGEST, draft=draft)
    paths = both_paths(trace.only(keep), setting)
    return paths[paths["step"] & paths["whole"]]


def _can(trace: CounterfactualTrace, kind: str | None) -> bool:
    scored = trace.tau is not None and bool((~np.isnan(trace.score)).any())
    return scored and (kind is None or kind in trace.drafts)


def _sums(paths: pd.DataFrame, state: str) -> Float[np.ndarray, "prompt 3"]:
    """Of each prompt: copies of full length, accepted tokens, and steps in this state."""
    mine = paths[paths["state"] == state]
    parts = pd.DataFrame(
        {"full": mine["copy"] == _LONGEST, "accepted": mine["copy"], "steps": 1}, index=mine.index
    )
    sums = parts.groupby(mine["prompt_id"]).sum()
    return sums.reindex(sorted(paths["prompt_id"].unique()), fill_value=0).to_numpy(float)


def _compared(paths: pd.DataFrame, column: int, combine: np.ufunc) -> Estimate | None:
    on, off = _sums(paths, "on"), _sums(paths, "off")
    if not on[:, 2].sum() or not off[:, 2].sum():
        return None
    means = [ratio(part[:, column], part[:, 2]) for part in (on, off)]
    return draw(combined(combine, *means), len(on), least=1).estimate()
