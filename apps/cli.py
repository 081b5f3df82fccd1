"""`switchsd …`: the command line.

Bad input ends with one line on stderr and exit code 2; an interrupt with 130, and what was finished
stays.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SwitchSDError
from .commands.bench import bench_command
from .commands.console import console, errors, progress_bars
from .commands.data import data_app
from .commands.draft import draft_app
from .commands.explain import explain_app, study_command
from .commands.gate import gate_app
from .commands.generate import generate_command
from .commands.options import DataDir, Target, grouped
from .commands.paper import claims_command, figures_command
from .commands.probe import probe_app
from .commands.replay import replay_command
from .commands.trace import profile_command, trace_command

_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="When does a language model copy from its context, and what does knowing it save?",
)


@app.callback()
def before_every_command(
    policies: Annotated[
        list[Path] | None,
        typer.Option(help="Python file that registers policies of your own; may repeat."),
    ] = None,
) -> None:
    """Policies of one's own are there before a command asks for one."""
    from ..decoding.policies import load_policies

    load_policies(policies or ())


app.add_typer(data_app, name="data")
app.add_typer(draft_app, name="draft")
app.add_typer(gate_app, name="gate")
app.add_typer(explain_app, name="explain")
explain_app.command("study")(study_command)
app.add_typer(probe_app, name="probe")


@app.command()
@grouped
def demo(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    target: Target,
    prompts: Annotated[int, typer.Option(help="CopyDiversity prompts for the probe.")] = 140,
    problems: Annotated[int, typer.Option(help="HumanEval problems to decode.")] = 12,
) -> None:
    """The main job: label, probe, gate and decode on one model, with a report."""
    from ..analysis.bench.demo import DemoConfig, run_demo
    from ..analysis.pages.tables import decoding_table, to_markdown

    with progress_bars() as progress:
        done = run_demo(
            target.load, run, DemoConfig(n_prompts=prompts, n_decode=problems),
            **vars(target), progress=progress,
        )  # fmt: skip
    metrics = done.metrics()
    probe = metrics["probe"]
    console.print(
        f"probe: {probe['site']}, tau {probe['tau']:.2f}, AUROC {probe['auroc']:.3f} "
        f"({probe['auroc_low']:.3f} to {probe['auroc_high']:.3f}), F1 {probe['f1']:.3f} "
        f"(always copy {probe['f1_always_copy']:.3f})",
        soft_wrap=True,
    )
    console.print(to_markdown(decoding_table(done.table("decoding"))), soft_wrap=True)
    console.print(f"report: {done.path / 'report.html'}", soft_wrap=True)
    console.print("look at it token by token: streamlit run apps/viewer.py", soft_wrap=True)


app.command(name="generate")(generate_command)
app.command(name="trace")(trace_command)
app.command(name="profile")(profile_command)
app.command(name="replay")(replay_command)
app.command(name="claims")(claims_command)
app.command(name="bench")(bench_command)
app.command(name="figures")(figures_command)


@app.command()
@grouped
def exactness(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/exactness"),
    target: Target,
    probe: Annotated[Path | None, typer.Option(help="Folder of the CopyProbe.")] = None,
    data_dir: DataDir = None,
    bench: Annotated[
        list[str] | None, typer.Option(help="Benchmarks; all four if left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--slice", help="A few prompts and samples only.")] = False,
) -> None:
    """Check that every policy is lossless on a model: greedy, sampled, and the KV cache."""
    from ..decoding.exactness.suite import BENCHMARKS, FULL, SLICE, is_exact, run_exactness
    from ..probing.loading import load
    from ..probing.shipped import find_probe

    lens = target.load()
    found = find_probe(lens, probe, required=True)
    assert found is not None
    again = partial(load, target.model, dtype=target.dtype) if target.device == "cpu" else None
    with progress_bars() as progress:
        done = run_exactness(
            lens, found, run, SLICE if quick else FULL, data_dir=data_dir,
            names=tuple(bench or BENCHMARKS), progress=progress, load=again,
        )  # fmt: skip
    metrics = done.metrics()
    for row in metrics["greedy"]:
        console.print(
            f"{row['policy']:<22} {row['tokens']:>6} tokens  {row['mismatches']} mismatches  "
            f"{row['multi_accepts']} multi-token accepts  {row['rejections']} rejections",
            soft_wrap=True,
        )
    for row in metrics["sampling"]:
        console.print(
            f"{row['policy']:<14} {row['level']:<13} {row['samples']:>7} samples  total variation "
            f"{row['tv']:.4f}  direct draws {row['tv_expected']:.4f} (limit {row['tv_limit']:.4f})",
            soft_wrap=True,
        )
    console.print(
        f"KV: {metrics['kv_walks']} walks, largest error {metrics['kv_max_error']:.1e}",
        soft_wrap=True,
    )
    if not is_exact(metrics):
        raise SwitchSDError(f"not exact: see {run / 'metrics.json'}")


@app.command()
@grouped
def microbench(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/microbench"),
    target: Target,
) -> None:
    """Measure the live hook, the context index, the loop, and PLD beside transformers' own."""
    from ..analysis.cost.microbench import run_microbench

    with progress_bars() as progress:
        done = run_microbench(target.load(), run, progress=progress)
    for key, value in done.metrics().items():
        console.print(f"{key}: {value}", soft_wrap=True)


def main() -> None:
    """Entry point; turns errors of input into one line and an exit code."""
    try:
        code = app(standalone_mode=False)  # Typer returns the code of its own exits, 130 included
    except SwitchSDError as error:
        errors.print(f"error: {error}", soft_wrap=True, markup=False)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:  # click's own usage errors know how to show themselves
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(2)
    if code == _INTERRUPTED:
        errors.print("interrupted; the same command goes on from what is finished", soft_wrap=True)
    sys.exit(code if isinstance(code, int) else 0)
