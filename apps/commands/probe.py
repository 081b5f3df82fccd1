"""`switchsd probe …`: train a probe, describe one, run the studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars
from .options import DEFAULT, Device, Dtype, Model, load_lens

if TYPE_CHECKING:
    from ...probing.lab.lab import Lab
    from ...progress import Progress

probe_app = typer.Typer(no_args_is_help=True, help="Train, describe and study copy probes.")

RunFolder = Annotated[Path, typer.Option("--run", help="Run folder; finished stages stay.")]
Prompts = Annotated[int, typer.Option(help="CopyDiversity prompts.")]
MaxNewTokens = Annotated[int, typer.Option(help="Budget of each CopyDiversity completion.")]
SweepPrompts = Annotated[int, typer.Option(help="Prompts for the sweep of all sites.")]
Candidates = Annotated[int, typer.Option(help="Sites captured on the whole corpus.")]
EvalPrompts = Annotated[int, typer.Option(help="Prompts of each benchmark.")]
EvalTokens = Annotated[int, typer.Option(help="Budget of each benchmark completion.")]
GivenTokens = Annotated[int, typer.Option(help="Tokens of WikiText and of ConstructedCopy.")]
NaturalText = Annotated[
    str, typer.Option(help="WikiText raw file or hub dataset; the one beside the benchmarks.")
]
DataDir = Annotated[str, typer.Option(help="Folder of the benchmarks; SWITCHSD_DATA.")]
Seed = Annotated[int, typer.Option(help="Of prompts, splits, sampling and intervals.")]


@probe_app.command()
def train(
    out: Annotated[Path | None, typer.Option(help="Also save the probe in this folder.")] = None,
    run: RunFolder = Path("runs/probing"),
    prompts: Prompts = 600,
    max_new_tokens: MaxNewTokens = 96,
    sweep_prompts: SweepPrompts = 140,
    candidates: Candidates = 8,
    eval_prompts: EvalPrompts = 40,
    eval_tokens: EvalTokens = 128,
    given_tokens: GivenTokens = 60_000,
    natural_text: NaturalText = "",
    data_dir: DataDir = "",
    seed: Seed = 0,
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Corpus, activations, sweep and selection; the chosen probe goes to RUN/probe."""
    if out is not None and out.exists() and any(out.iterdir()):
        raise SwitchSDError(f"{out} is not empty; choose another folder for the probe")
    with progress_bars() as progress:
        lab = _lab(locals(), progress)
        probe, _ = lab.save_probes()
        lab.run.finish()
    if out is not None:
        probe.save(out)
    metrics = probe.metrics
    console.print(
        f"{probe.site}, label offset {probe.label_offset}, tau {probe.tau:.3f}; target "
        f"{metrics['target']} on CopyDiversity test prompts: AUROC {metrics['auroc']:.3f} "
        f"({metrics['auroc_low']:.3f} to {metrics['auroc_high']:.3f}), F1 {metrics['f1']:.3f} "
        f"(always copy {metrics['f1_always_copy']:.3f})",
        soft_wrap=True,
    )
    console.print(f"probe: {out or lab.run.path / 'probe'}", soft_wrap=True)


@probe_app.command()
def describe(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a probe; the default model's shipped one.")
    ] = None,
) -> None:
    """Site, label offset, threshold, model and test figures of a probe, as JSON."""
    from ...probing.copy_probe import CopyProbe
    from ...probing.shipped import SHIPPED

    print(json.dumps(CopyProbe.load(folder or SHIPPED / DEFAULT).describe(), indent=1))


@probe_app.command()
def study(
    every: Annotated[bool, typer.Option("--all", help="Every study.")] = False,
    study: Annotated[list[str] | None, typer.Option(help="Repeatable: one study by name.")] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Measure speed and memory; needs a quiet machine.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure the timings anew.")] = False,
    memory_tokens: Annotated[
        int, typer.Option(help="Tokens captured for the memory figure.")
    ] = 1_000_000,
    run: RunFolder = Path("runs/probing"),
    prompts: Prompts = 600,
    max_new_tokens: MaxNewTokens = 96,
    sweep_prompts: SweepPrompts = 140,
    candidates: Candidates = 8,
    eval_prompts: EvalPrompts = 40,
    eval_tokens: EvalTokens = 128,
    given_tokens: GivenTokens = 60_000,
    natural_text: NaturalText = "",
    data_dir: DataDir = "",
    seed: Seed = 0,
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Run studies into RUN: tables, figures and metrics.json. Interrupted, it goes on."""
    from ...analysis.pages.run_figures import write_probing_figures
    from ...probing.lab.named_studies import STUDIES

    names = list(STUDIES) if every else list(study or [])
    unknown = [name for name in names if name not in STUDIES]
    if unknown or not (names or timings):
        raise SwitchSDError(
            f"{'no study ' + unknown[0] if unknown else 'name a study'}: --all, --timings or "
            f"--study with one of {', '.join(STUDIES)}"
        )
    with progress_bars() as progress:
        lab = _lab(locals(), progress)
        for done, name in enumerate(names):
            progress("studies", done, len(names))
            STUDIES[name](lab)
        progress("studies", len(names), max(len(names), 1))
        if timings:
            from ...probing.lab.timings import measure_timings

            measure_timings(lab, memory_tokens=memory_tokens, again=again)
    written = write_probing_figures(lab.run)
    lab.run.finish()
    _tell(lab.run.metrics())
    console.print(f"{len(written)} figures, tables and metrics: {lab.run.path}", soft_wrap=True)


def _lab(options: dict[str, Any], progress: Progress) -> Lab:
    from ...probing.lab.lab import LabConfig, open_lab

    model, device, dtype = (options[name] for name in ("model", "device", "dtype"))
    config = LabConfig(
        n_prompts=options["prompts"],
        completion_tokens=options["max_new_tokens"],
        **{
            name: options[name]
            for name in LabConfig.__dataclass_fields__
            if name not in ("n_prompts", "completion_tokens")
        },
    )
    return open_lab(
        lambda: load_lens(model, device, dtype),
        options["run"],
        config,
        model=model,
        dtype=dtype,
        device=device,
        progress=progress,
        say=lambda text: console.print(text, soft_wrap=True),
    )


def _tell(metrics: dict[str, Any]) -> None:
    for row in metrics.get("evaluation", []):
        console.print(
            f"{row['set']:<15} AUROC {row['auroc']:.3f} ({row['auroc_low']:.3f} to "
            f"{row['auroc_high']:.3f})  F1 {row['f1']:.3f}  given a match {_three(row)}",
            soft_wrap=True,
        )


def _three(row: dict[str, Any]) -> str:
    names = (("surface", "surface_"), ("served probe", ""), ("both", "both_"))
    return ", ".join(f"{name} {row[f'{prefix}auroc_given_match']:.3f}" for name, prefix in names)
