"""Measure a latency profile on this machine: every cost of a step, in turns, as medians.

All points are measured once a round, in an order drawn anew, so that a slow minute falls on all
alike; the first rounds warm up and do not count. Parts run as the decode loop runs them: the
forward with mask and captured streams, drafters through `propose` with what they have yet to take
in. The tokens are random: what a forward costs does not depend on them.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...decoding.drafters.drafter import Drafter
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress, silent
from .points import START, Point, draft_points, small_parts, verification_points
from .profile import LatencyProfile
from .surface import Surface, rising


@dataclass(frozen=True)
class ProfilePlan:
    """Which points are measured; those beyond a model's context are left out.

    Attributes:
        tokens: of a verification, draft and anchor.
        contexts: tokens in the cache.
        gammas: lookaheads of chains.
        pending: tokens a draft takes in first.
        repeats: measurements of each point.
        warmup: rounds before them.
        seed: of tokens and order.

    Raises:
        SwitchSDError: no points, points below 1, or no repeats.
    """

    tokens: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 11, 16, 21, 32, 48, 64, 96)
    contexts: tuple[int, ...] = (64, 256, 512, 1024)
    gammas: tuple[int, ...] = (1, 2, 3, 5, 7, 10)
    pending: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    repeats: int = 15
    warmup: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.warmup < 0:
            raise SwitchSDError(f"repeats = {self.repeats}: measure each point at least once")
        for name in ("tokens", "contexts", "gammas", "pending"):
            points = getattr(self, name)
            if not points or min(points) < 1 or list(points) != sorted(set(points)):
                raise SwitchSDError(f"{name} = {points}: give rising numbers from 1")


def measure_profile(
    lens: Lens,
    drafters: Mapping[str, Callable[[], Drafter]],
    probe: CopyProbe | None,
    plan: ProfilePlan | None = None,
    *,
    progress: Progress = silent,
) -> LatencyProfile:
    """Measure everything a step of these drafts costs.

    Args:
        lens: the target.
        drafters: kind (eagle3, sps, tree_20_4_4 …) → makes a drafter of it, as deep as any.
        probe: of the gate; None leaves the gate out.
        plan: what is measured; the defaults if None.
        progress: told the rounds.

    Raises:
        SwitchSDError: a probe of another model, or a context with room for no point.
    """
    plan = plan or ProfilePlan()
    if probe is not None:
        probe.check(lens)
    made = {kind: make() for kind, make in drafters.items()}
    sites = [probe.site] if probe is not None else []
    sites = list(dict.fromkeys([*sites, *(s for drafter in made.values() for s in drafter.sites)]))
    axes = {"verify": _fitting(plan, lens)}
    points = verification_points(lens, sites, *axes["verify"], plan.seed)
    for kind, drafter in made.items():
        axes[kind] = _draft_axes(drafter, plan, lens)
        points += draft_points(lens, kind, drafter, *axes[kind], plan.seed)
    order = random.Random(plan.seed)
    for done in range(plan.warmup + plan.repeats):
        progress("profile", done, plan.warmup + plan.repeats)
        order.shuffle(points)
        for point in points:
            seconds = point.run()
            if done >= plan.warmup:
                point.seconds.append(seconds)
    progress("profile", plan.warmup + plan.repeats, plan.warmup + plan.repeats)
    medians, spread = {}, {}
    for name, (rows, columns) in axes.items():
        medians[name], spread[name] = _tables(points, name, (len(rows), len(columns)))
    surfaces = {
        name: Surface(np.array(rows, float), np.array(columns, float), rising(medians[name]))
        for name, (rows, columns) in axes.items()
    }
    parts = small_parts(lens, probe, plan.seed)
    return LatencyProfile(
        surfaces.pop("verify"),
        surfaces,
        overhead_ms=parts["overhead"],
        lookup_ms=parts["lookup"],
        gate_ms=parts.get("gate"),
        about={
            **machine(lens),
            "repeats": plan.repeats,
            "measured": {name: table.tolist() for name, table in medians.items()},
            "spread": {name: table.tolist() for name, table in spread.items()},
        },
    )


def machine(lens: Lens) -> dict[str, Any]:
    """What the times are of: model, dtype, device, cores, threads, versions."""
    device = str(lens.device)
    if lens.device.type == "cuda":
        device = torch.cuda.get_device_name(lens.device)
    return {
        "model": lens.name,
        "fingerprint": lens.fingerprint,
        "dtype": lens.dtype,
        "attention": lens.attention,
        "device": device,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "spread_is": "interquartile range, ms",
    }


def _fitting(plan: ProfilePlan, lens: Lens) -> tuple[list[int], list[int]]:
    tokens = [count for count in plan.tokens if count < lens.n_ctx]
    contexts = [c for c in plan.contexts if c + max(tokens, default=0) <= lens.n_ctx]
    if not tokens or not contexts:
        raise SwitchSDError(f"{lens.name} has a context of {lens.n_ctx}: choose smaller points")
    return tokens, contexts


def _draft_axes(drafter: Drafter, plan: ProfilePlan, lens: Lens) -> tuple[list[int], list[int]]:
    gammas = [drafter.tree.deepest] if drafter.tree is not None else list(plan.gammas)
    longest = min(lens.n_ctx, drafter.n_ctx or lens.n_ctx)
    fits = [count for count in plan.pending if START + count + max(gammas) + 1 < longest]
    if not fits:
        raise SwitchSDError(f"{lens.name} has a context of {lens.n_ctx}: too short to profile")
    return gammas, fits


def _tables(
    points: list[Point], name: str, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Medians and interquartile ranges in ms."""
    median, spread = np.zeros(shape), np.zeros(shape)
    for point in points:
        if point.name == name:
            low, middle, high = np.percentile(1e3 * np.array(point.seconds), [25, 50, 75])
            median[point.place], spread[point.place] = middle, high - low
    return median, spread
