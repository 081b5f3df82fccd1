"""`switchsd explain study`: which heads carry copy-intent, on many prompts, with causal tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import console, progress_bars
from .options import DEFAULT, Device, Dtype, Model, load_lens


def study_command(
    run: Annotated[Path, typer.Option(help="Run folder; finished stages stay.")] = Path(
        "runs/explain"
    ),
    model: Model = DEFAULT,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    probe: Annotated[
        Path | None, typer.Option(help="Folder of a CopyProbe; the shipped one if left out.")
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable: benchmark or JSONL file; all four if left out."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Evaluation prompts, in all.")] = 64,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are passed over.")] = 200,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each completion.")] = 64,
    train_prompts: Annotated[
        int, typer.Option(help="CopyDiversity prompts that heads are ranked on.")
    ] = 64,
    heads: Annotated[
        list[int] | None, typer.Option(help="Repeatable: heads ablated together.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Sets of random heads at the headline number.")] = 6,
    pairs: Annotated[int, typer.Option(help="Prompts patched.")] = 20,
    steering_prompts: Annotated[int, typer.Option(help="Prompts steered.")] = 24,
    data_dir: Annotated[str, typer.Option(help="Folder of the benchmarks; SWITCHSD_DATA.")] = "",
    seed: Annotated[int, typer.Option(help="Of training prompts, draws and intervals.")] = 0,
) -> None:
    """Head scores, attribution, ablation, patching, steering, and the matched study, into RUN."""
    from .explain_config import ExplainConfig
    from .explain_study import run_explain_study
    from .generate_command import find_probe

    standard = ExplainConfig()
    config = ExplainConfig(
        benchmarks=tuple(bench or standard.benchmarks),
        n_prompts=prompts,
        max_prompt_tokens=max_prompt_tokens,
        completion_tokens=max_new_tokens,
        train_prompts=train_prompts,
        ks=tuple(heads or standard.ks),
        draws=draws,
        pairs=pairs,
        steering_prompts=steering_prompts,
        data_dir=data_dir,
        seed=seed,
    )

    def served(lens: Any) -> Any:
        return find_probe(lens, probe, required=True)

    with progress_bars() as progress:
        done = run_explain_study(
            lambda: load_lens(model, device, dtype),
            served,
            run,
            config,
            model=model,
            dtype=dtype,
            device=device,
            progress=progress,
        )
    from ..analysis.causal_words import headlines

    for line in headlines(done.metrics()):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"report: {done.path / 'report.html'}", soft_wrap=True, markup=False)
