"""`switchsd draft eval`: what the drafts of a model are worth, on three benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import console, errors, progress_bars
from .draft_options import (
    AutoDtype,
    DraftFolder,
    HeadFolder,
    ProbeFolder,
    draft_digests,
    draft_folders,
    open_draft_model,
    open_head,
    tree_shape,
)
from .options import DEFAULT, Device, Model, load_lens, say_left_out


def eval_command(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/drafts"),
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: AutoDtype = "auto",
    eagle3: HeadFolder = None,
    sps: DraftFolder = None,
    probe: ProbeFolder = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each benchmark.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each.")] = 128,
    tree: Annotated[
        str, typer.Option(help="Draft tree of eagle3-tree: total/depth/top_k.")
    ] = "20/4/4",
    bench: Annotated[
        list[str] | None, typer.Option(help="Benchmarks; humaneval, math500 and cnndm if left out.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the benchmark files.")] = None,
) -> None:
    """Measure accepted lengths and speed of EAGLE-3, SPS and SwitchSD beside vanilla decoding."""
    from ..analysis.draft_eval import SETS, DraftEval, Drafts, run_draft_eval
    from ..analysis.draft_measures import eval_table
    from ..analysis.tables import to_markdown
    from ..decoding.shipped import weights_mib
    from .generate_command import find_probe

    config = DraftEval(
        prompts, max_new_tokens, tuple(bench or SETS), tree_shape(tree)
    )  # refused before the model loads
    lens = load_lens(model, device, native_dtype(device) if dtype == "auto" else dtype)
    folders = draft_folders(lens, eagle3, sps)
    say_left_out(lens, folders, ("eagle3", "sps"))
    drafts = Drafts(
        head=open_head(lens, folders.get("eagle3")),
        model=open_draft_model(lens, folders.get("sps")),
        files=draft_digests(folders),
        sizes={name: weights_mib(folder) for name, folder in folders.items() if folder.is_dir()},
        learning_curve=_learning_curve(folders.get("eagle3")),
    )
    found = find_probe(lens, probe, required=False)
    if found is None:
        errors.print(f"no probe for {lens.name}: switchsd is left out", soft_wrap=True)
    with progress_bars() as progress:
        done = run_draft_eval(
            lens, drafts, found, run, config, data_dir=data_dir, progress=progress
        )
    _show(done.metrics(), to_markdown(eval_table(done.table("drafts"))))
    console.print(f"figures: {done.path / 'metrics.json'}", soft_wrap=True)


def native_dtype(device: str) -> str:
    """bfloat16 where the processor multiplies it natively, else float32.

    On a CPU that is AVX-512 BF16 or AMX on x86 (torch reports them), the BF16 extension on ARM; on
    a GPU what torch says of it.
    """
    import torch

    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    able = torch.cpu.get_capabilities() if device == "cpu" else {}
    return (
        "bfloat16" if any(able.get(f) for f in ("avx512_bf16", "amx_bf16", "bf16")) else "float32"
    )


def _learning_curve(folder: Path | None) -> list[dict[str, float]]:
    """What the head's card says about accepted length against training tokens."""
    from ..decoding.drafters.draft_card import read_card

    about = read_card(folder).get("about") if folder is not None else None
    return about.get("learning_curve") or [] if isinstance(about, dict) else []


def _show(metrics: dict[str, Any], table: str) -> None:
    console.print(f"{metrics['dtype']}, {metrics['threads']} threads, greedy", soft_wrap=True)
    console.print(table, soft_wrap=True, markup=False)
    for policy in dict.fromkeys(row["policy"] for row in metrics["accepted_per_position"]):
        for name in dict.fromkeys(row["set"] for row in metrics["rows"]):
            shares = [
                f"{row['share']:.2f}"
                for row in metrics["accepted_per_position"]
                if (row["policy"], row["set"]) == (policy, name)
            ]
            line = " ".join(shares)
            console.print(f"accepted per position, {policy}, {name}: {line}", soft_wrap=True)
    for row in metrics["switchsd_over_eagle3"]:
        console.print(f"switchsd over eagle3, {row['set']}: {row['ratio']:.3f}", soft_wrap=True)
    for row in metrics["learning_curve"]:
        console.print(
            f"learning curve, from the {metrics['learning_curve_from']}: {row['tokens']:,} tokens, "
            f"{row['mean_accepted']:.2f} accepted",
            soft_wrap=True,
        )
    for name, mib in metrics["artefact_mib"].items():
        console.print(f"{name}: {mib:.1f} MiB", soft_wrap=True)
    diverged = metrics["divergences"]
    if diverged:
        largest = max(row["margin"] for row in diverged)
        console.print(
            f"{len(diverged)} texts leave vanilla's, as rounding in {metrics['dtype']} can make "
            f"them; the two highest logits lie at most {largest:.3g} apart there "
            "(divergences.parquet)",
            soft_wrap=True,
        )
