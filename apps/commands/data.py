"""`switchsd data build …`: the corpora, one command each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars
from .options import Target, grouped

if TYPE_CHECKING:
    import pandas as pd

data_app = typer.Typer(no_args_is_help=True, help="Build the corpora that probes are trained on.")
build_app = typer.Typer(
    no_args_is_help=True,
    help="Build a corpus: corpus.parquet and a manifest in one folder. Interrupted, the same "
    "command goes on.",
)
data_app.add_typer(build_app, name="build")

Out = Annotated[Path | None, typer.Option(help="Folder; runs/corpora/<name> if left out.")]
Seed = Annotated[int, typer.Option(help="Of prompts and sampling.")]
NTokens = Annotated[int, typer.Option("--tokens", help="Tokens to build, about.")]


@build_app.command("copy-diversity")
@grouped
def copy_diversity(
    *,
    out: Out = None,
    prompts: Annotated[int, typer.Option(help="Number of prompts.")] = 600,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each completion.")] = 96,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable; 0 and 0.8 if left out.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Repeatable; every template family if left out.")
    ] = None,
    seed: Seed = 0,
    target: Target,
) -> None:
    """Prompts that make the model copy and ones that repeat by accident, completed by the model."""
    from ...probing.corpora.build import TEMPERATURES, build_copy_diversity

    temperatures: Sequence[float] = temperature or TEMPERATURES
    if min(temperatures) < 0 or len(set(temperatures)) < len(temperatures):
        raise SwitchSDError("temperatures must be at least 0 and each named once")
    folder = out or Path("runs/corpora/copy_diversity")
    with progress_bars() as progress:
        corpus = build_copy_diversity(
            target.load(),
            folder,
            n_prompts=prompts,
            max_new_tokens=max_new_tokens,
            temperatures=temperatures,
            families=family,
            seed=seed,
            progress=progress,
        )
    _tell(corpus, folder)


@build_app.command("constructed-copy")
@grouped
def constructed_copy(
    *,
    out: Out = None,
    tokens: NTokens = 60_000,
    seed: Seed = 0,
    target: Target,
) -> None:
    """Repeated spans of random tokens."""
    from ...probing.corpora.build import build_constructed_copy

    folder = out or Path("runs/corpora/constructed_copy")
    lens = target.load()
    _tell(build_constructed_copy(lens, folder, n_tokens=tokens, seed=seed), folder)


@build_app.command("natural-text")
@grouped
def natural_text(
    *,
    source: Annotated[
        str,
        typer.Option(help="WikiText raw file or hub dataset org/name:config:split."),
    ],
    out: Out = None,
    tokens: NTokens = 60_000,
    target: Target,
) -> None:
    """WikiText articles as they stand."""
    from ...probing.corpora.build import build_natural_text

    folder = out or Path("runs/corpora/natural_text")
    lens = target.load()
    _tell(build_natural_text(lens, folder, source=source, n_tokens=tokens), folder)


@build_app.command("benchmark")
@grouped
def benchmark(
    *,
    name: Annotated[
        str,
        typer.Argument(help="humaneval, math500, cnndm, mtbench, a .jsonl file or a hub dataset."),
    ],
    out: Out = None,
    prompts: Annotated[int, typer.Option(help="The first so many prompts.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each completion.")] = 128,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the JSONL benchmarks.")] = None,
    target: Target,
) -> None:
    """A benchmark completed by the model; for evaluation only."""
    from ...probing.corpora.build import build_benchmark

    folder = out or Path("runs/corpora") / Path(name).stem.replace(":", "-")
    with progress_bars() as progress:
        corpus = build_benchmark(
            target.load(),
            name,
            folder,
            n_prompts=prompts,
            max_new_tokens=max_new_tokens,
            data_dir=data_dir,
            progress=progress,
        )
    _tell(corpus, folder)


def _tell(corpus: pd.DataFrame, folder: Path) -> None:
    tokens = int(corpus["completion_ids"].map(len).sum())
    console.print(
        f"{len(corpus)} texts of {corpus['prompt_id'].nunique()} prompts, "
        f"{tokens} tokens to label: {folder / 'corpus.parquet'}",
        soft_wrap=True,
    )
