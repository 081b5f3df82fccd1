"""`switchsd trace`: the greedy text of benchmark prompts, and what every path is worth in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import console, errors, progress_bars
from .draft_options import (
    DraftFolder,
    HeadFolder,
    ProbeFolder,
    Trees,
    draft_digests,
    draft_folders,
    open_draft_model,
    open_head,
    tree_shape,
)
from .options import DEFAULT, Device, Dtype, Model, load_lens, say_left_out


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
    from ..analysis.counterfactual import TraceSettings
    from ..analysis.draft_eval import Drafts
    from ..analysis.trace_writer import run_trace
    from .generate_command import find_probe

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
