"""Any policy over a counterfactual trace, step by step as it would have decoded.

The gate is the very object that decides live; what its choices give is read from the trace instead
of a model. A gate without memory is asked once for all rows, and the run is then a walk along
"where does the next step begin". A latency profile adds the time.

Decode time only: the time in which a draft takes in the prompt is given apart (`draft_prefill_ms`),
as if it had been spent in prefill.

A trace of 6 new tokens behind a prompt of 10, so 6 rows; where a step begins at each, a copy would
have 2, 1, 0, 0, 1, 0 accepted and the draft 1, 1, 1, 2, 1, 0. A gate that copies at rows 0 and 4
only takes two steps: row 0 (copy, 2 accepted, 3 emitted) and row 3 (neural, 2 accepted, 3 emitted),
with which the text ends. Vanilla takes 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from ...decoding.gates.gate import DraftPath, Observation, Outcome
from ...decoding.policies import Policy
from ...decoding.step.log import path_shares
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .plan import Plan
from .settings import Setting

NEAR_TAU, NEAR_GAP = 1e-5, 1e-4
"""Closer than this to τ or another threshold on the score, or between the two largest logits,
rounding may decide otherwise live."""


@dataclass(frozen=True)
class Played:
    """A policy's steps over a trace.

    Attributes:
        plan: policy and trace.
        rows: where its steps began.
        copies: where the gate chose to copy.
    """

    plan: Plan
    rows: Int[np.ndarray, " step"]
    copies: Bool[np.ndarray, " step"]

    def steps(self) -> pd.DataFrame:
        """One row a step: prompt_id, set, step, position, path, proposed, accepted, emitted, score,
        match_length, near_tie, and with a profile ms.
        """
        trace, rows = self.plan.trace, self.rows
        prompt = trace.prompt[rows]
        first = np.searchsorted(rows, trace.starts)
        proposed, accepted, emitted = self._outcome()
        frame = pd.DataFrame(
            {
                "prompt_id": trace.prompts["prompt_id"].to_numpy()[prompt],
                "set": trace.prompts["set"].to_numpy()[prompt],
                "step": np.arange(len(rows)) - first[prompt],
                "position": trace.committed[rows],
                "path": np.where(proposed == 0, "plain", np.where(self.copies, "copy", "neural")),
                "proposed": proposed,
                "accepted": accepted,
                "emitted": emitted,
                "score": trace.score[rows],
                "match_length": self.plan.columns.match_length[rows],
                "near_tie": self._near_ties(),
            }
        )
        if self.plan.times is not None:
            frame["ms"] = self.plan.times.of_steps(rows, self.copies)
        return frame

    def sums(self, keep: Bool[np.ndarray, " prompt"] | None = None) -> dict[str, float]:
        """Pooled over prompts, or those to keep.

        Returns:
            steps, tokens, what `path_shares` gives, near_ties; with a profile also ms,
            draft_prefill_ms, tokens_per_s, speedup (over vanilla under the same profile).
        """
        trace, rows = self.plan.trace, self.rows
        kept = np.ones(len(rows), dtype=bool) if keep is None else keep[trace.prompt[rows]]
        proposed, accepted, emitted = (part[kept] for part in self._outcome())
        found: dict[str, float] = {
            "steps": len(proposed),
            "tokens": int(emitted.sum()),
            **path_shares(proposed > 0, self.copies[kept], accepted),
            "near_ties": int(self._near_ties()[kept].sum()),
        }
        times = self.plan.times
        if times is not None:
            ms = float(times.of_steps(rows, self.copies)[kept].sum())
            plain = times.vanilla if keep is None else times.vanilla[keep[trace.prompt]]
            prefill = times.draft_prefill(rows, self.copies)
            found |= {
                "ms": ms,
                "draft_prefill_ms": float((prefill if keep is None else prefill[keep]).sum()),
                "tokens_per_s": 1e3 * found["tokens"] / ms if ms else np.nan,
                "speedup": float(plain.sum()) / ms if ms else np.nan,
            }
        return found

    def prompt_ms(self) -> Float[np.ndarray, " prompt"]:
        """Decode time of each prompt.

        Raises:
            SwitchSDError: played without a profile.
        """
        times, trace = self.plan.times, self.plan.trace
        if times is None:
            raise SwitchSDError("played without a latency profile there are no times")
        ms = times.of_steps(self.rows, self.copies)
        return np.bincount(trace.prompt[self.rows], ms, minlength=len(trace.prompts))

    def _outcome(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Proposed, accepted and emitted of each step."""
        plan, rows, copies = self.plan, self.rows, self.copies
        proposed = np.where(copies, plan.copy.proposed[rows], plan.neural.proposed[rows])
        accepted = np.where(copies, plan.copy.accepted[rows], plan.neural.accepted[rows])
        return proposed, accepted, np.minimum(accepted + 1, plan.trace.remaining[rows])

    def _near_ties(self) -> Bool[np.ndarray, " step"]:
        """Steps on which rounding could have decided."""
        trace, rows = self.plan.trace, self.rows
        smallest = np.minimum.reduceat(np.nan_to_num(trace.gap, nan=np.inf), rows)
        near = smallest < NEAR_GAP  # of the tokens up to where the next step begins: this step's
        for threshold in self.plan.policy.gate.thresholds:
            near |= np.abs(trace.score[rows] - threshold) < NEAR_TAU
        return near


def replay(
    trace: CounterfactualTrace, policy: Setting | Policy, *, profile: LatencyProfile | None = None
) -> Played:
    """Play a policy over a trace.

    Args:
        trace: a greedy counterfactual trace.
        policy: a setting, or a `Policy` of any gate, any copier and a drafter of a traced kind.
        profile: what steps cost; without one there are no times.

    Raises:
        SwitchSDError: what `Setting.build` and `Plan.of` raise.

    Example:
        >>> trace = CounterfactualTrace.read(Path("runs/trace"))
        >>> replay(trace, Setting("switchsd", tau=0.4)).steps()
    """
    if isinstance(policy, Setting):
        policy = policy.build(trace, profile)
    if profile is not None:
        profile.check(trace.fingerprint)
    return play(Plan.of(trace, policy, profile))


def play(plan: Plan, *, one_by_one: bool = False) -> Played:
    """Take a plan's steps; `one_by_one` asks the gate at every step even if it has no memory."""
    copies = plan.policy.gate.decide_many(plan.columns)
    if copies is None or one_by_one:
        return _play_steps(plan)
    ends = (np.arange(len(plan.trace)) + plan.emitted(copies)).tolist()
    rows, row, last = [], 0, len(ends)
    while row < last:
        rows.append(row)
        row = ends[row]
    walked = np.array(rows, dtype=np.int64)
    return Played(plan, walked, copies[walked])


def _play_steps(plan: Plan) -> Played:
    trace, gate, seen = plan.trace, plan.policy.gate, plan.columns
    committed, matched = seen.committed.tolist(), seen.match_length.tolist()
    some, scores = seen.has_candidate.tolist(), seen.score.tolist()
    given: dict[DraftPath, tuple[list[int], list[int]]] = {
        "copy": (plan.copy.proposed.tolist(), plan.copy.accepted.tolist()),
        "neural": (plan.neural.proposed.tolist(), plan.neural.accepted.tolist()),
    }
    remaining, starts = trace.remaining.tolist(), set(trace.starts.tolist())
    clock = plan.times.clock() if plan.times is not None else _no_clock
    rows: list[int] = []
    copies: list[bool] = []
    row = 0
    while row < len(trace):
        if row in starts:
            gate.reset()
        score = None if np.isnan(scores[row]) else scores[row]
        path = gate.decide(Observation(committed[row], some[row], matched[row], score))
        proposed, accepted = given[path][0][row], given[path][1][row]
        emitted = min(accepted + 1, remaining[row])
        seconds = clock(row, path == "copy") / 1e3
        gate.observe(Outcome(path, accepted, emitted, seconds, proposed, committed[row]))
        rows.append(row)
        copies.append(path == "copy")
        row += emitted
    return Played(plan, np.array(rows), np.array(copies))


def sweep(
    trace: CounterfactualTrace,
    settings: Sequence[Setting],
    *,
    profile: LatencyProfile | None = None,
    progress: Progress = silent,
) -> pd.DataFrame:
    """Play many settings; one row each with the setting and `Played.sums`.

    Raises:
        SwitchSDError: what `replay` raises.
    """
    rows: list[dict[str, Any]] = []
    for done, setting in enumerate(settings):
        progress("replay", done, len(settings))
        rows.append({**asdict(setting), **replay(trace, setting, profile=profile).sums()})
    progress("replay", len(settings), len(settings))
    return pd.DataFrame(rows)


def by_set(trace: CounterfactualTrace, played: Played) -> pd.DataFrame:
    """`Played.sums` of each set of prompts, and of all as "all"."""
    sets = trace.prompts["set"].to_numpy()
    rows = [{"set": "all", **played.sums()}]
    rows += [{"set": name, **played.sums(sets == name)} for name in dict.fromkeys(sets)]
    return pd.DataFrame(rows)


def _no_clock(row: int, copied: bool) -> float:
    return 0.0
