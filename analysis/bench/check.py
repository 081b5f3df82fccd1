"""Does replay do what live decoding does? Steps, paths and accepted lengths, and the time.

Live decoding in float32 under each policy against replay over a float32 trace of the same prompts.
A text is compared step by step up to its first difference: everything behind it follows from it.
Steps that rounding could have decided (a score at τ, two largest logits alike) are counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ...decoding.drafts import Drafts
from ...decoding.policies import Policy
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run
from ..cost.profile import LatencyProfile
from ..replay.replay import replay
from ..replay.settings import Setting
from ..traces.trace import CounterfactualTrace
from .measures import bench_rows
from .methods import Methods, fit_digests
from .race import Race, race_prompts
from .replayed import (
    check_replayable,
    largest_errors,
    replayed_steps,
    setting_of,
    settings_seconds,
    speed_errors,
)

COMMAND = "bench --check-replay"
_COMPARED = ("position", "path", "proposed", "accepted", "emitted")


def compare_texts(
    live: pd.DataFrame, replayed: pd.DataFrame, tokens: pd.DataFrame, trace: CounterfactualTrace
) -> pd.DataFrame:
    """Each text of one policy, live against replayed.

    Args:
        live: its live steps: prompt_id, step, and what is compared.
        replayed: `Played.steps`.
        tokens: its live texts: prompt_id, position, id.
        trace: the replayed trace, of these prompts or more.

    Returns:
        prompt_id, steps (live), replayed_steps, agrees, differs_at (number of the first step that
        differs, or whose tokens do; none), near (whether that step is a near tie), near_ties (steps
        of the replay that are).
    """
    by_prompt = {key: part.reset_index(drop=True) for key, part in replayed.groupby("prompt_id")}
    texts = tokens.sort_values("position").groupby("prompt_id")["id"].agg(list)
    traced = dict(zip(trace.prompts["prompt_id"], trace.texts, strict=True))
    rows = []
    for prompt_id, mine in live.groupby("prompt_id", sort=False):
        mine, other = mine.reset_index(drop=True), by_prompt[prompt_id]
        at = _first_difference(mine, other, texts[prompt_id], traced[prompt_id])
        rows.append(
            {
                "prompt_id": prompt_id,
                "steps": len(mine),
                "replayed_steps": len(other),
                "agrees": at is None,
                "differs_at": at,
                "near": at is not None and bool(other["near_tie"].iloc[min(at, len(other) - 1)]),
                "near_ties": int(other["near_tie"].sum()),
            }
        )
    return pd.DataFrame(rows).astype({"differs_at": "Int64"})


def _first_difference(
    live: pd.DataFrame, replayed: pd.DataFrame, text: list[int], traced: list[int]
) -> int | None:
    shorter = min(len(live), len(replayed))
    same = (live[:shorter][list(_COMPARED)] == replayed[:shorter][list(_COMPARED)]).all(axis=1)
    for step in range(shorter):
        first = int(live["position"][step])
        last = first + int(live["emitted"][step])
        if not same[step] or text[first:last] != traced[first:last]:
            return step
    return None if len(live) == len(replayed) else shorter


def open_float32_trace(
    folder: Path, lens: Lens, drafts: Drafts, probe: CopyProbe | None
) -> CounterfactualTrace:
    """A trace of this very model, drafts and probe in float32.

    Raises:
        SwitchSDError: another model, tokenizer, dtype, draft or probe.
    """
    trace = CounterfactualTrace.read(folder, lens)
    if (lens.dtype, trace.dtype) != ("float32", "float32"):
        raise SwitchSDError(
            f"replay equals live decoding in float32; the model is in {lens.dtype} and {folder} in "
            f"{trace.dtype}: trace with --dtype float32 and check with it"
        )
    mine = {**dict(drafts.files), "probe": None if probe is None else probe.digest}
    for kind, traced in trace.digests.items():
        if trace.settings[kind] is not None and traced != mine.get(kind):
            raise SwitchSDError(
                f"{folder} was traced with another {kind} ({traced or 'unnamed'}, not "
                f"{mine.get(kind) or 'none'}): trace again, or name that one"
            )
    return trace


def run_check(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    methods: Methods,
    folder: Path,
    profile: LatencyProfile | None,
    path: Path,
    *,
    prompts: int | None = None,
    timed: Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Decode a trace's prompts live under every policy and compare; a run goes on where it was.

    A finished one too: what was decoded stays, the figures are made anew, say for another profile.

    Writes the tables runs, steps, tokens (live), texts (`compare_texts` with policy), speeds
    (`speed_errors`, with a profile), and into `metrics.json` replay_equals_live,
    replay_speedup_error, replay_seconds_1000_settings (and of how many prompts),
    trace_cost_over_generation.

    Args:
        lens: the target in float32.
        drafts: those that were traced.
        probe: that was traced.
        methods: what is compared.
        folder: the trace's.
        profile: of float32 on this machine; None compares no times.
        path: run folder.
        prompts: the first so many of each set; None: all.
        timed: folder of the trace that 1,000 settings are timed over; `folder` if None.
        progress: told the number of prompts of each set.

    Raises:
        SwitchSDError: what `open_float32_trace` and `check_replayable` raise.
    """
    traced = open_float32_trace(folder, lens, drafts, probe)
    large = traced if timed is None else CounterfactualTrace.read(timed)
    asked = traced.prompts if prompts is None else traced.prompts.groupby("set").head(prompts)
    settings = {label: setting_of(label, each.draft) for label, each in methods.raced.items()}
    threads = torch.get_num_threads()
    check_replayable(traced, settings, profile, dtype=lens.dtype, threads=threads)
    config = {
        "trace": traced.settings, "prompts": asked["prompt_id"].tolist(), "dtype": lens.dtype,
        "policies": list(settings), "threads": threads, "fits": fit_digests(methods),
    }  # fmt: skip
    run = Run.start(path, command=COMMAND, config=config, again=True)
    run.describe(
        state="running",
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        profile=None if profile is None else profile.describe(),
    )
    race = _live(lens, methods.policies, asked, traced, path / "greedy", progress)
    some = traced.only(traced.prompts["prompt_id"].isin(asked["prompt_id"]).to_numpy())
    texts = _texts(race, some, settings)
    metrics: dict[str, Any] = {"replay_equals_live": _agreement(texts)}
    tables = {"runs": race.runs, "steps": race.steps, "tokens": race.tokens, "texts": texts}
    if profile is not None:
        rows = bench_rows(race.steps, list(settings))
        played = bench_rows(replayed_steps(some, settings, profile), list(settings))
        tables["speeds"] = speed_errors(rows, played)
        metrics["replay_speedup_error"] = largest_errors(tables["speeds"])
    seconds, count = settings_seconds(large, profile)
    metrics |= {
        "replay_seconds_1000_settings": seconds,
        "replay_seconds_prompts": count,
        "trace_cost_over_generation": Run(folder).metrics().get("trace_cost_over_generation"),
    }
    for name, table in tables.items():
        run.write_table(name, table)
    run.update_metrics(model=lens.name, dtype=lens.dtype, left_out=methods.left_out, **metrics)
    run.finish()
    return run


def _live(
    lens: Lens,
    policies: Mapping[str, Policy],
    asked: pd.DataFrame,
    trace: CounterfactualTrace,
    folder: Path,
    progress: Progress,
) -> Race:
    prompts = pd.DataFrame(
        {
            "prompt_id": asked["prompt_id"],
            "set": asked["set"],
            "ids": [list(ids[:n]) for ids, n in zip(asked["ids"], asked["n_prompt"], strict=True)],
        }
    )
    budget = int(trace.max_new_tokens or 0)
    return race_prompts(folder, lens, prompts, policies, max_new_tokens=budget, progress=progress)


def _texts(race: Race, trace: CounterfactualTrace, settings: Mapping[str, Setting]) -> pd.DataFrame:
    tables = []
    for label, setting in settings.items():
        live, tokens = (part[part["policy"] == label] for part in (race.steps, race.tokens))
        table = compare_texts(live, replay(trace, setting).steps(), tokens, trace)
        table.insert(0, "policy", label)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _agreement(texts: pd.DataFrame) -> dict[str, Any]:
    """What `metrics.json` says: texts that differ elsewhere than at a near tie, and near ties."""
    differs = ~texts["agrees"]
    return {
        "prompts": int(texts["prompt_id"].nunique()),
        "policies": list(dict.fromkeys(texts["policy"])),
        "steps": int(texts["replayed_steps"].sum()),
        "disagreements": int((differs & ~texts["near"]).sum()),
        "near_ties": int(texts["near_ties"].sum()),
        "near_tie_differences": int((differs & texts["near"]).sum()),
    }
