"""`switchsd bench`: every policy live beside transformers' own, and whether replay agrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, errors, progress_bars
from .options import AutoTarget, Companions, DataDir, grouped, load_lens

if TYPE_CHECKING:
    from ...analysis.bench.methods import Methods
    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.traces.trace import CounterfactualTrace
    from ...decoding.drafts import Drafts
    from ...probing.copy_probe import CopyProbe
    from ...probing.lens import Lens


@grouped
def bench_command(
    *,
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/bench"),
    target: AutoTarget,
    companions: Companions,
    sets: Annotated[
        str, typer.Option(help="Benchmarks or JSONL files, with commas in between.")
    ] = "humaneval,math500,cnndm",
    prompts: Annotated[
        int | None, typer.Option(help="Prompts of each set; 20, with --check-replay all traced.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Budget of each.")] = 128,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy; may repeat. +sps behind it: with the draft model. All."),
    ] = None,
    temperature: Annotated[
        str, typer.Option(help="Temperatures of four policies on some prompts; '' for none.")
    ] = "0,0.5,1",
    sampled_prompts: Annotated[int, typer.Option(help="Prompts at each temperature.")] = 12,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace for more sets, the best γ and examples; or to check against."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Latency profile (JSON) of this machine, for the trace.")
    ] = None,
    check_replay: Annotated[
        bool, typer.Option("--check-replay", help="Compare live decoding with replay of --trace.")
    ] = False,
    settings_trace: Annotated[
        Path | None,
        typer.Option(help="With --check-replay: trace that 1,000 settings are timed over."),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Only write a finished run's tables anew.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Race the policies on benchmark prompts, or check that replay does what they do live."""
    from ...analysis.bench.methods import bench_methods
    from ...analysis.bench.run import BenchPlan
    from ...analysis.cost.profile import LatencyProfile
    from ...runs import Run

    names = tuple(name.strip() for name in sets.split(",") if name.strip())
    plan = BenchPlan(
        names, 20 if prompts is None else prompts, max_new_tokens, _numbers(temperature),
        sampled_prompts,
    )  # fmt: skip
    Run.check(run)
    if check_replay and trace is None:
        raise SwitchSDError("--check-replay needs a float32 trace to compare with: give --trace")
    if profile is not None and trace is None:
        raise SwitchSDError("a profile alone gives nothing to replay: give --trace too")
    costs = LatencyProfile.load(profile) if profile is not None else None
    if tables:
        _tables(run, target.model, trace, costs)
        return
    if check_replay and target.dtype == "auto":
        target = replace(target, dtype="float32")
    lens = target.load()
    drafts, found = companions.drafts(lens), companions.copy_probe(lens)
    methods = bench_methods(lens, drafts, found, policy)
    for label, why in methods.left_out.items():
        errors.print(f"{label} is left out: {why}", soft_wrap=True, markup=False)
    if check_replay:
        assert trace is not None
        _check(lens, drafts, found, methods, run, trace, costs, prompts, settings_trace)
    else:
        _bench(lens, drafts, found, methods, run, plan, trace, costs, data_dir)


def _bench(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    methods: Methods,
    run: Path,
    plan: Any,
    trace: Path | None,
    costs: LatencyProfile | None,
    data_dir: Path | None,
) -> None:
    import torch

    from ...analysis.bench.replayed import check_replayable, setting_of
    from ...analysis.bench.report import write_outcome
    from ...analysis.bench.run import bench_outcome, run_bench

    traced = _traced(trace, lens)
    if traced is not None:  # refused before anything is raced
        settings = {name: setting_of(name, each.draft) for name, each in methods.raced.items()}
        threads = torch.get_num_threads()
        check_replayable(traced, settings, costs, dtype=lens.dtype, threads=threads)
    with progress_bars() as progress:
        done = run_bench(
            lens, drafts, probe, methods, run, plan, data_dir=data_dir, progress=progress
        )
    write_outcome(done, trace=traced, profile=costs, tokenizer=lens.tokenizer)
    _show(done)
    bench_outcome(done)


def _tables(run: Path, model: str, trace: Path | None, costs: LatencyProfile | None) -> None:
    from ...analysis.bench.report import write_outcome
    from ...analysis.bench.run import COMMAND
    from ...runs import Run

    done = Run(run)
    manifest = done.manifest()
    if (manifest.get("command"), manifest.get("state")) != (COMMAND, "complete"):
        raise SwitchSDError(f"{run} is no finished run of `switchsd bench`")
    if costs is not None:
        metrics = done.metrics()
        costs.check_setup(metrics["dtype"], metrics["threads"])
    lens = load_lens(model, "cpu", "float32")
    write_outcome(done, trace=_traced(trace, lens), profile=costs, tokenizer=lens.tokenizer)
    _show(done)


def _check(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    methods: Methods,
    run: Path,
    trace: Path,
    costs: LatencyProfile | None,
    prompts: int | None,
    timed: Path | None,
) -> None:
    """Into the run folder; where a benchmark lies there, beside it, its figures into that one's."""
    from ...analysis.bench.check import run_check
    from ...analysis.bench.run import COMMAND
    from ...runs import Run

    bench = Run(run)
    beside = bench.exists() and bench.manifest().get("command") == COMMAND
    with progress_bars() as progress:
        done = run_check(
            lens, drafts, probe, methods, trace, costs, run / "check-replay" if beside else run,
            prompts=prompts, timed=timed, progress=progress,
        )  # fmt: skip
    metrics = done.metrics()
    if beside:
        keys = [key for key in metrics if key.startswith(("replay_", "trace_cost"))]
        bench.update_metrics(**{key: metrics[key] for key in keys})
    agreement = metrics["replay_equals_live"]
    console.print(
        f"{agreement['prompts']} prompts, {len(agreement['policies'])} policies, "
        f"{agreement['steps']} steps: {agreement['disagreements']} texts differ; "
        f"{agreement['near_ties']} steps that rounding could decide, "
        f"{agreement['near_tie_differences']} of them did",
        soft_wrap=True,
    )
    for name, error in metrics.get("replay_speedup_error", {}).items():
        console.print(f"replayed speedup of {name}: off by at most {error:.1%}", soft_wrap=True)
    console.print(
        f"1,000 settings on {metrics['replay_seconds_prompts']} prompts: "
        f"{metrics['replay_seconds_1000_settings']:.1f} s",
        soft_wrap=True,
    )
    console.print(f"figures: {done.path / 'metrics.json'}", soft_wrap=True)
    if agreement["disagreements"]:
        raise SwitchSDError(f"replay is not what live decoding does: see texts in {done.path}")


def _traced(trace: Path | None, lens: Lens) -> CounterfactualTrace | None:
    """The trace, if it is this model's and tokenizer's."""
    from ...analysis.traces.trace import CounterfactualTrace

    return None if trace is None else CounterfactualTrace.read(trace, lens)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise SwitchSDError(
            f"--temperature {text}: give numbers with commas in between, as in 0,0.5,1"
        ) from error


def _show(done: Any) -> None:
    from ...analysis.bench.tables import divergence_table, throughput_table
    from ...analysis.pages.tables import to_markdown

    metrics = done.metrics()
    console.print(f"{metrics['dtype']}, {metrics['threads']} threads", soft_wrap=True)
    for number in (1, 2):
        console.print(f"Table {number}", soft_wrap=True)
        table = throughput_table(done.table(f"table{number}"))
        console.print(to_markdown(table), soft_wrap=True, markup=False)
    diverged = done.table("divergences")
    if len(diverged):
        console.print("texts that leave transformers' own", soft_wrap=True)
        shown = to_markdown(divergence_table(diverged))
        console.print(shown, soft_wrap=True, markup=False)
    console.print(f"report: {done.path / 'report.html'}", soft_wrap=True)
