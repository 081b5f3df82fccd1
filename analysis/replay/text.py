"""A traced text as a policy would decode it: the tables that the viewer shows, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from ...data.context_index import Candidate, common_prefix
from ...decoding.drafters.copy import Copier
from ...errors import SwitchSDError
from ..cost.profile import LatencyProfile
from ..traces.trace import CounterfactualTrace
from .replay import replay
from .settings import Setting


@dataclass(frozen=True)
class ReplayedText:
    """One prompt under one setting.

    Attributes:
        tokens: position, id, text, step, path, source, score; one row a token.
        steps: `Played.steps` of this prompt.
        wants: positions where the gate would copy if a step began there.
    """

    tokens: pd.DataFrame
    steps: pd.DataFrame
    wants: frozenset[int]


def one_prompt(trace: CounterfactualTrace, prompt_id: str) -> CounterfactualTrace:
    """The trace of one prompt.

    Raises:
        SwitchSDError: no such prompt.
    """
    keep = (trace.prompts["prompt_id"] == prompt_id).to_numpy()
    if not keep.any():
        raise SwitchSDError(f"the trace holds no prompt {prompt_id!r}; choose one that was traced")
    return trace.only(keep)


def sums_of(
    trace: CounterfactualTrace, setting: Setting, profile: LatencyProfile | None = None
) -> dict[str, float]:
    """`Played.sums` of a setting over all prompts, computed once for each setting.

    Raises:
        SwitchSDError: what `replay` raises.
    """

    def play() -> dict[str, float]:
        return replay(trace, setting, profile=profile).sums()

    return trace.once(("sums", setting, id(profile)), play, profile)


def replayed_text(
    alone: CounterfactualTrace,
    setting: Setting,
    texts: Sequence[str],
    *,
    profile: LatencyProfile | None = None,
) -> ReplayedText:
    """Play a setting over one text and say of every token how it came about.

    Args:
        alone: `one_prompt` of a trace.
        setting: the policy.
        texts: each token's text, prompt included.
        profile: what steps cost; None: no times.

    Raises:
        SwitchSDError: what `replay` raises.
    """
    played = replay(alone, setting, profile=profile)
    steps = played.steps()
    ids = alone.texts[0]
    if len(texts) != len(ids):
        raise SwitchSDError(f"{len(texts)} texts for {len(ids)} tokens: they are of another text")
    n_prompt = int(alone.prompts["n_prompt"].iloc[0])
    step, path = _of_each_token(steps, len(ids))
    score = np.full(len(ids), np.nan)
    score[n_prompt:] = alone.score
    tokens = pd.DataFrame(
        {
            "position": np.arange(len(ids)),
            "id": ids,
            "text": list(texts),
            "step": step,
            "path": path,
            "source": _sources(alone, steps, played.plan.policy.copier),
            "score": score,
        }
    )
    wanted = played.plan.policy.gate.decide_many(played.plan.columns)
    if wanted is None:
        wanted = np.zeros(len(alone), dtype=bool)
    return ReplayedText(
        tokens,
        steps,
        frozenset(alone.committed[wanted].tolist()),
    )


def predicted_row(tau: float, sums: dict[str, float]) -> dict[str, str]:
    """What `Played.sums` predicts at a threshold, as words; speeds only where there are times."""
    row = {
        "at τ": f"{tau:.2f}",
        "steps": f"{sums['steps']:,.0f}",
        "tokens a step": _number(sums["tokens"] / max(sums["steps"], 1)),
        "copy steps": f"{sums['copy_share']:.1%}",
        "accepted a copy": _number(sums["mean_accepted_copy"]),
        "accepted a neural draft": _number(sums["mean_accepted_neural"]),
    }
    if "speedup" in sums:
        row["ms a token"] = _number(sums["ms"] / max(sums["tokens"], 1))
        row["tokens/s"] = _number(sums["tokens_per_s"])
        row["speed over vanilla"] = f"{sums['speedup']:.2f}×"
    return row


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def _of_each_token(steps: pd.DataFrame, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Step and path of every token; -1 and prompt before the first step."""
    step, path = np.full(total, -1), np.full(total, "prompt", dtype=object)
    emitted = steps["emitted"].to_numpy()
    row = np.repeat(np.arange(len(steps)), emitted)  # of each new token
    place = np.arange(len(row)) - np.repeat(np.cumsum(emitted) - emitted, emitted)
    position = steps["position"].to_numpy()[row] + place
    taken = steps["path"].to_numpy(dtype=object)[row]
    drafted = (place < steps["accepted"].to_numpy()[row]) | (taken == "plain")
    step[position] = steps["step"].to_numpy()[row]
    path[position] = np.where(drafted, taken, "bonus")
    return step, path


def _sources(alone: CounterfactualTrace, steps: pd.DataFrame, copier: Copier | None) -> np.ndarray:
    """Where each accepted copied token was copied from, -1 elsewhere."""
    ids = alone.texts[0]
    found = np.full(len(ids), -1)
    if copier is None:
        return found
    rule = (*copier.rule, copier.W, copier.D)
    offered = alone.once(("offered", rule), lambda: _offered(alone, copier), copier)
    copied = steps[(steps["path"] == "copy") & (steps["accepted"] > 0)]
    for first, accepted in zip(
        copied["position"].tolist(), copied["accepted"].tolist(), strict=True
    ):
        candidates = offered[first]
        source = candidates[0].source
        if len(candidates) > 1:
            truth = ids[first : first + accepted]
            source = max(candidates, key=partial(_agrees, truth)).source
        found[first : first + accepted] = np.arange(source, source + accepted)
    return found


def _offered(alone: CounterfactualTrace, copier: Copier) -> dict[int, tuple[Candidate, ...]]:
    """What the copier offers at every position; looked up once, thresholds do not change it."""
    ids = alone.texts[0]
    copier.reset()
    return {place: copier.look(ids[:place]).candidates for place in alone.committed.tolist()}


def _agrees(truth: list[int], candidate: Candidate) -> int:
    return common_prefix(candidate.tokens, truth)
