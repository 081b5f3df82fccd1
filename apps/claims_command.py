"""`switchsd claims`: the paper's quantitative claims against the runs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import SwitchSDError
from .console import console
from .options import DEFAULT, Model, load_lens


def claims_command(
    run: Annotated[Path, typer.Option(help="Run folder; a benchmark's is added to.")] = Path(
        "runs/measure"
    ),
    probing: Annotated[Path, typer.Option(help="Run of `probe study`.")] = Path("runs/probing"),
    bench: Annotated[
        Path | None, typer.Option(help="Run of `bench`; the run folder, if it is one.")
    ] = None,
    trace: Annotated[Path, typer.Option(help="Run of `trace`.")] = Path("runs/trace"),
    profile: Annotated[
        Path | None, typer.Option(help="Latency profile (JSON), for speeds by replay and γ.")
    ] = None,
    model: Model = DEFAULT,
) -> None:
    """Judge every claim; where a run is missing, the row says which command makes it."""
    from ..analysis.claims import shown_claims
    from ..analysis.claims_run import write_claims
    from ..analysis.cost import LatencyProfile
    from ..analysis.tables import to_markdown
    from ..analysis.trace_run import open_trace
    from ..analysis.traced import Traced
    from ..runs import Run

    Run.check(run)
    if bench is None and Run(run).exists() and Run(run).manifest().get("command") == "bench":
        bench = run
    for path, said in ((bench, "--bench"), (profile, "--profile")):
        if path is not None and not path.exists():
            raise SwitchSDError(f"{said} {path} does not exist")
    traced = tokenizer = None
    if Run(trace).exists():
        lens = load_lens(model, "cpu", "float32")
        open_trace(trace, lens)  # the right model's and tokenizer's
        traced, tokenizer = Traced.read(trace), lens.tokenizer
    table = write_claims(
        run,
        probing=probing if Run(probing).exists() else None,
        bench=bench,
        trace=traced,
        profile=LatencyProfile.load(profile) if profile is not None else None,
        tokenizer=tokenizer,
    )
    shown = shown_claims(table).drop(columns=["section", "note"])
    console.print(to_markdown(shown), soft_wrap=True, markup=False)
    counts = table["verdict"].value_counts()
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    console.print(f"claims: {run / 'claims.html'}", soft_wrap=True)
