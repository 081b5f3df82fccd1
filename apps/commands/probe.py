"""`switchsd probe …`: train a probe, describe one, run the studies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars
from .options import DEFAULT, Target, grouped

if TYPE_CHECKING:
    from ...probing.lab.lab import Lab
    from ...progress import Progress

probe_app = typer.Typer(no_args_is_help=True, help="Train, describe and study copy probes.")

RunFolder = Annotated[Path, typer.Option("--run", help="Run folder; finished stages stay.")]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the lab: `LabConfig` as options."""

    n_prompts: Annotated[int, typer.Option("--prompts", help="CopyDiversity prompts.")] = 600
    completion_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Budget of each CopyDiversity completion.")
    ] = 96
    sweep_prompts: Annotated[int, typer.Option(help="Prompts for the sweep of all sites.")] = 140
    candidates: Annotated[int, typer.Option(help="Sites captured on the whole corpus.")] = 8
    eval_prompts: Annotated[int, typer.Option(help="Prompts of each benchmark.")] = 40
    eval_tokens: Annotated[int, typer.Option(help="Budget of each benchmark completion.")] = 128
    given_tokens: Annotated[
        int, typer.Option(help="Tokens of WikiText and of ConstructedCopy.")
    ] = 60_000
    natural_text: Annotated[
        str, typer.Option(help="WikiText raw file or hub dataset; the one beside the benchmarks.")
    ] = ""
    data_dir: Annotated[str, typer.Option(help="Folder of the benchmarks; SWITCHSD_DATA.")] = ""
    seed: Annotated[int, typer.Option(help="Of prompts, splits, sampling and intervals.")] = 0

    def lab(self, run: Path, target: Target, progress: Progress) -> Lab:
        """The lab of this size in a run folder."""
        from ...probing.lab.lab import LabConfig, open_lab

        return open_lab(
            target.load, run, LabConfig(**vars(self)), **vars(target), progress=progress,
            say=lambda text: console.print(text, soft_wrap=True),
        )  # fmt: skip


@probe_app.command()
@grouped
def train(
    *,
    out: Annotated[Path | None, typer.Option(help="Also save the probe in this folder.")] = None,
    run: RunFolder = Path("runs/probing"),
    sizes: Sizes,
    target: Target,
) -> None:
    """Corpus, activations, sweep and selection; the chosen probe goes to RUN/probe."""
    if out is not None and out.exists() and any(out.iterdir()):
        raise SwitchSDError(f"{out} is not empty; choose another folder for the probe")
    with progress_bars() as progress:
        lab = sizes.lab(run, target, progress)
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
@grouped
def study(
    *,
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
    sizes: Sizes,
    target: Target,
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
        lab = sizes.lab(run, target, progress)
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
