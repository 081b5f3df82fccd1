"""`switchsd trace`: the greedy text of benchmark prompts, and what every path is worth in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...decoding.drafts import draft_digests, draft_folders, open_draft_model, open_head
from ...errors import SwitchSDError
from .console import console, errors, progress_bars
from .options import (
    DEFAULT,
    Device,
    DraftFolder,
    Dtype,
    HeadFolder,
    Model,
    ProbeFolder,
    Trees,
    load_lens,
    say_left_out,
    tree_shape,
)

if TYPE_CHECKING:
    from ...decoding.drafters.drafter import Drafter
    from ...decoding.step.tree_shape import TreeShape
    from ...probing.lens import Lens


def trace_command(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/trace"),
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    sets: Annotated[
        str, typer.Option(help="Benchmarks or JSONL files, with commas in between.")
    ] = "humaneval,math500,cnndm,mtbench,mt_redundant",
    limit: Annotated[int, typer.Option(help="Prompts of each set; 0: all.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each.")] = 128,
    eagle3: HeadFolder = None,
    sps: DraftFolder = None,
    probe: ProbeFolder = None,
    no_eagle3: Annotated[bool, typer.Option("--no-eagle3", help="Trace no EAGLE-3.")] = False,
    no_sps: Annotated[bool, typer.Option("--no-sps", help="Trace no draft model.")] = False,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Trace no scores.")] = False,
    tree: Trees = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the benchmark files.")] = None,
) -> None:
    """Decode greedily once, and keep what every policy would have accepted at every position."""
    from ...analysis.traces.columns import TraceSettings
    from ...analysis.traces.write import run_trace
    from ...decoding.drafts import Drafts
    from ...probing.shipped import find_probe

    settings = TraceSettings(max_new_tokens)  # refused before the model loads
    if tree:
        settings = TraceSettings(max_new_tokens, trees=tuple(tree_shape(text) for text in tree))
    lens = load_lens(model, device, dtype)
    folders = draft_folders(lens, eagle3, sps)
    unwanted = {kind for kind, no in (("eagle3", no_eagle3), ("sps", no_sps)) if no}
    say_left_out(lens, folders, tuple(kind for kind in ("eagle3", "sps") if kind not in unwanted))
    folders = {kind: folder for kind, folder in folders.items() if kind not in unwanted}
    drafts = Drafts(
        head=open_head(lens, folders.get("eagle3")),
        model=open_draft_model(lens, folders.get("sps")),
        files=draft_digests(folders),
    )
    found = None if no_probe else find_probe(lens, probe, required=False)
    if found is None and not no_probe:
        errors.print(f"no probe for {lens.name}: scores are left out", soft_wrap=True)
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


def profile_command(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("profile.json"),
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    eagle3: HeadFolder = None,
    sps: DraftFolder = None,
    probe: ProbeFolder = None,
    tree: Trees = None,
    repeats: Annotated[int, typer.Option(help="Measurements of each point.")] = 15,
    replace: Annotated[bool, typer.Option("--replace", help="Write over an older file.")] = False,
) -> None:
    """Measure verification, drafting, lookup and gate on this machine."""
    from ...analysis.cost.measure import ProfilePlan, measure_profile
    from ...analysis.traces.columns import TraceSettings
    from ...probing.shipped import find_probe

    plan = ProfilePlan(repeats=repeats)  # refused before the model loads
    shapes = tuple(tree_shape(text) for text in tree or ()) or TraceSettings().trees
    if out.exists() and not replace:
        raise SwitchSDError(f"{out} exists: choose another --out, or write over it with --replace")
    lens = load_lens(model, device, dtype)
    found = find_probe(lens, probe, required=False)
    if found is None:
        errors.print(f"no probe for {lens.name}: the gate is left out", soft_wrap=True)
    folders = draft_folders(lens, eagle3, sps)
    say_left_out(lens, folders, ("eagle3", "sps"))
    drafters = _drafters(lens, folders, shapes)
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
    lens: Lens, folders: dict[str, Path], shapes: tuple[TreeShape, ...]
) -> dict[str, Callable[[], Drafter]]:
    """Every kind of draft there is, each as deep as traces hold them."""
    from ...analysis.traces.columns import GAMMA
    from ...decoding.drafters.draft_model import DraftModel
    from ...decoding.eagle3.drafter import Eagle3

    made: dict[str, Callable[[], Drafter]] = {}
    head, small = (
        open_head(lens, folders.get("eagle3")),
        open_draft_model(lens, folders.get("sps")),
    )
    if head is not None:
        made["eagle3"] = lambda: Eagle3(head, lens, gamma=GAMMA)
        for shape in shapes:
            made[shape.name] = partial(Eagle3, head, lens, tree=shape)
    if small is not None:
        made["sps"] = lambda: DraftModel(small, lens, gamma=GAMMA)
    return made
