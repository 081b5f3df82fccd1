"""Choose how fine cost-aware's cells are, and what it copies, by prompts held out of its fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ...data.benchmarks import BENCHMARKS
from ...decoding.drafters.copy import RecentCopier
from ...decoding.gates.cost_aware import CostAwareFit, CostAwareGate
from ...decoding.policies import Policy
from ...errors import SwitchSDError
from ...progress import Progress, silent
from ..cost.profile import LatencyProfile
from ..traces.columns import GAMMA
from ..traces.trace import CounterfactualTrace
from .cost_aware_fit import Shape, fit_cost_aware
from .oracle import always_draft, oracle_path, share
from .paths import TracedDraft
from .replay import replay
from .settings import Setting, TracedProbe

FOLDS = 5
NS, WS, BINS, PRIORS = (1, 2, 3, 4), (1, 2), (1, 4, 8, 12), (10.0, 40.0, 160.0)
"""What is tried: n × W first, then the number of bins of the score, then the prior."""


@dataclass(frozen=True)
class Chosen:
    """A fit on all prompts, and what the shapes were worth on held-out ones.

    Attributes:
        fit: the fit.
        tried: n, W, bins, prior, ms (of all prompts, each held out of its fit).
        share: of `oracle_path`'s gain over always drafting, held out, both with chains at their
            default γ; NaN without a draft.
    """

    fit: CostAwareFit
    tried: pd.DataFrame
    share: float


def choose_cost_aware(
    trace: CounterfactualTrace,
    profile: LatencyProfile,
    *,
    kind: str | None = "eagle3",
    folds: int = FOLDS,
    seed: int = 0,
    progress: Progress = silent,
) -> Chosen:
    """Fit cost-aware with the shape that takes least time on held-out prompts.

    Args:
        trace: training prompts.
        profile: what steps cost where it will run.
        kind: of the neural draft: eagle3, sps or a traced tree; None: one token there.
        folds: parts of the prompts, each held out once.
        seed: of the parts.
        progress: told the shapes.

    Raises:
        SwitchSDError: evaluation prompts among them, fewer prompts than parts, no traced copies,
            or what `fit_cost_aware` raises.
    """
    refuse_evaluation(trace)
    if len(trace.prompts) < folds:
        raise SwitchSDError(
            f"{len(trace.prompts)} prompts for {folds} parts: trace more training prompts"
        )
    ns = [n for n in NS if f"copy_n{n}" in trace.positions]
    if not ns:
        raise SwitchSDError("the trace holds no copies: make it again with `switchsd trace`")
    part = np.random.default_rng(seed).permutation(len(trace.prompts)) % folds
    parts = [(trace.only(part != k), trace.only(part == k)) for k in range(folds)]
    tried: dict[Shape, float] = {}
    total = len(ns) * len(WS) + len(BINS) - 1 + len(PRIORS) - 1

    def held_out(shape: Shape) -> float:
        if shape not in tried:
            progress("shapes", len(tried), total)
            fits = [fit_cost_aware(rest, profile, kind=kind, shape=shape) for rest, _ in parts]
            tried[shape] = sum(
                float(replay(held, played(fit, held), profile=profile).prompt_ms().sum())
                for fit, (_, held) in zip(fits, parts, strict=True)
            )
        return tried[shape]

    best = min((Shape(n, W) for n in ns for W in WS), key=held_out)
    best = min((replace(best, bins=bins) for bins in BINS), key=held_out)
    best = min((replace(best, prior=prior) for prior in PRIORS), key=held_out)
    progress("shapes", total, total)
    fit = fit_cost_aware(trace, profile, kind=kind, shape=best)
    table = pd.DataFrame([{**asdict(shape), "ms": ms} for shape, ms in tried.items()])
    if kind is None:
        return Chosen(fit, table, float("nan"))
    fixed = Setting(draft="sps" if kind == "sps" else "eagle3")
    base = replay(trace, always_draft(trace, fixed), profile=profile).prompt_ms().sum()
    bound = oracle_path(trace, fixed, profile).prompt_ms.sum()
    return Chosen(fit, table, share(tried[best], float(base), float(bound)))


def played(fit: CostAwareFit, trace: CounterfactualTrace) -> Policy:
    """The policy of a fit, to be replayed on a trace of the same drafts."""
    copier = RecentCopier(fit.W, max(1, *map(max, fit.copy)), fit.n)
    neural = None if fit.kind is None else TracedDraft(fit.kind, GAMMA)
    return Policy("cost-aware", CostAwareGate(fit), copier, neural, TracedProbe.of(trace))


def refuse_evaluation(trace: CounterfactualTrace) -> None:
    """Raise if prompts are of an evaluation set: nothing is tuned on those.

    Raises:
        SwitchSDError: names the set.
    """
    names = dict.fromkeys(map(str, trace.prompts["set"]))
    found = [name for name in names if Path(name).stem in BENCHMARKS]
    if found:
        raise SwitchSDError(
            f"the trace holds prompts of {', '.join(found)}, which are for evaluation only: trace "
            "training prompts with `switchsd trace --sets FILE.jsonl`"
        )
