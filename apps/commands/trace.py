"""`switchsd trace`: the greedy text of benchmark prompts, and what every path is worth in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars
from .options import Companions, DataDir, Target, Trees, grouped, tree_shape

if TYPE_CHECKING:
    from ...decoding.drafters.drafter import Drafter
    from ...decoding.drafts import Drafts
    from ...decoding.step.tree_shape import TreeShape
    from ...probing.lens import Lens


@grouped
def trace_command(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/trace"),
    target: Target,
    sets: Annotated[
        str, typer.Option(help="Benchmarks or JSONL files, with commas in between.")
    ] = "humaneval,math500,cnndm,mtbench,mt_redundant",
    limit: Annotated[int, typer.Option(help="Prompts of each set; 0: all.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each.")] = 128,
    companions: Companions,
    no_eagle3: Annotated[bool, typer.Option("--no-eagle3", help="Trace no EAGLE-3.")] = False,
    no_sps: Annotated[bool, typer.Option("--no-sps", help="Trace no draft model.")] = False,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Trace no scores.")] = False,
    tree: Trees = None,
    data_dir: DataDir = None,
) -> None:
    """Decode greedily once, and keep what every policy would have accepted at every position."""
    from ...analysis.traces.columns import TraceSettings
    from ...analysis.traces.write import run_trace

    settings = TraceSettings(max_new_tokens)  # refused before the model loads
    if tree:
        settings = TraceSettings(max_new_tokens, trees=tuple(tree_shape(text) for text in tree))
    lens = target.load()
    unwanted = tuple(kind for kind, no in (("eagle3", no_eagle3), ("sps", no_sps)) if no)
    drafts = companions.drafts(lens, without=unwanted)
    found = None if no_probe else companions.copy_probe(lens, "scores are")
    names = [name.strip() for name in sets.split(",") if name.strip()]
    with progress_bars() as progress:
        done = run_trace(
            lens, drafts, found, run, settings, sets=names, limit=limit or None,
            data_dir=data_dir, progress=progress,
        )  # fmt: skip
    metrics = done.metrics()
    console.print(
        f"{metrics['prompts']} prompts, {metrics['positions']} positions; "
        f"{metrics['trace_cost_over_generation']:.2f}× the time of the generations alone",
        soft_wrap=True,
    )
    console.print(f"trace: {done.path}", soft_wrap=True)


@grouped
def profile_command(
    *,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("profile.json"),
    target: Target,
    companions: Companions,
    tree: Trees = None,
    repeats: Annotated[int, typer.Option(help="Measurements of each point.")] = 15,
    replace: Annotated[bool, typer.Option("--replace", help="Write over an older file.")] = False,
) -> None:
    """Measure verification, drafting, lookup and gate on this machine."""
    from ...analysis.cost.measure import ProfilePlan, measure_profile
    from ...analysis.traces.columns import TraceSettings

    plan = ProfilePlan(repeats=repeats)  # refused before the model loads
    shapes = tuple(tree_shape(text) for text in tree or ()) or TraceSettings().trees
    if out.exists() and not replace:
        raise SwitchSDError(f"{out} exists: choose another --out, or write over it with --replace")
    lens = target.load()
    found = companions.copy_probe(lens, "the gate is")
    drafters = _drafters(lens, companions.drafts(lens), shapes)
    with progress_bars() as progress:
        profile = measure_profile(lens, drafters, found, plan, progress=progress)
    profile.save(out)
    one = float(profile.verify(1, 256))
    console.print(f"plain step at 256 tokens: {one + profile.overhead_ms:.2f} ms", soft_wrap=True)
    for tokens in (6, 11, 21):
        console.print(
            f"verifying {tokens} tokens: {float(profile.verify(tokens, 256)) / one:.2f} forwards",
            soft_wrap=True,
        )
    for kind, surface in profile.drafts.items():
        deepest = int(surface.rows[-1])
        console.print(
            f"draft of {kind}, {deepest} deep: {float(profile.draft(kind, deepest, 1)):.2f} ms",
            soft_wrap=True,
        )
    console.print(f"profile: {out}", soft_wrap=True)


def _drafters(
    lens: Lens, drafts: Drafts, shapes: tuple[TreeShape, ...]
) -> dict[str, Callable[[], Drafter]]:
    """Every kind of draft there is, each as deep as traces hold them."""
    from ...analysis.traces.columns import GAMMA
    from ...decoding.drafters.draft_model import DraftModel
    from ...decoding.eagle3.drafter import Eagle3

    made: dict[str, Callable[[], Drafter]] = {}
    head, small = drafts.head, drafts.model
    if head is not None:
        made["eagle3"] = lambda: Eagle3(head, lens, gamma=GAMMA)
        for shape in shapes:
            made[shape.name] = partial(Eagle3, head, lens, tree=shape)
    if small is not None:
        made["sps"] = lambda: DraftModel(small, lens, gamma=GAMMA)
    return made
