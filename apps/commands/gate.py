"""`switchsd gate …`: fit the gate that decides by expected time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars

gate_app = typer.Typer(
    no_args_is_help=True, help="Fit the gate that decides by expected time (policy cost-aware)."
)


@gate_app.callback()
def gate() -> None:
    """A group, so that `fit` stays a word of its own."""


@gate_app.command()
def fit(
    trace: Annotated[Path, typer.Option(help="Run folder of a trace of training prompts.")],
    profile: Annotated[Path, typer.Option(help="Latency profile (JSON) of the machine it is for.")],
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/gate-fit"),
    draft: Annotated[
        str, typer.Option(help="Neural path: eagle3, sps, a traced tree as in tree_20_4_4, none.")
    ] = "eagle3",
    out: Annotated[
        Path | None, typer.Option(help="Write the fit there too, as in …/cost-aware/eagle3.json.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the held-out parts.")] = 0,
) -> None:
    """Fit cost-aware on a trace of training prompts under a latency profile."""
    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.replay.cost_aware_choice import choose_cost_aware, refuse_evaluation
    from ...analysis.traces.trace import CounterfactualTrace
    from ...decoding.step.tree_shape import TreeShape
    from ...runs import Run

    Run.check(run)
    if draft not in ("eagle3", "sps", "none") and TreeShape.parse(draft) is None:
        raise SwitchSDError(f"--draft {draft}: choose eagle3, sps, none or a traced tree")
    if out is not None and out.exists():
        raise SwitchSDError(f"{out} is there already: choose another file or delete it")
    costs = LatencyProfile.load(profile)
    traced = CounterfactualTrace.read(trace)
    refuse_evaluation(traced)
    costs.check(traced.fingerprint)
    kind = None if draft == "none" else draft
    with progress_bars() as progress:
        chosen = choose_cost_aware(traced, costs, kind=kind, seed=seed, progress=progress)
    config = {
        "trace": str(trace), "profile": costs.describe(), "draft": draft, "seed": seed,
        "fingerprint": traced.fingerprint, "digests": traced.digests,
    }  # fmt: skip
    done = Run.start(run, command="gate fit", config=config)
    done.write_table("tried", chosen.tried)
    for path in (done.path / "fit.json", *((out,) if out is not None else ())):
        chosen.fit.save(path)
    done.update_metrics(
        share_held_out=chosen.share,
        prompts=len(traced.prompts),
        tokens_per_ms=chosen.fit.about["tokens_per_ms"],
        n=chosen.fit.n,
        W=chosen.fit.W,
        bins=len(chosen.fit.scores) + 1,
    )
    done.finish()
    console.print(
        f"n = {chosen.fit.n}, W = {chosen.fit.W}, {len(chosen.fit.scores) + 1} bins of the score; "
        f"{chosen.share:.1%} of the oracle's gain on held-out training prompts",
        soft_wrap=True,
    )
    console.print(f"fit: {out or done.path / 'fit.json'}", soft_wrap=True)
