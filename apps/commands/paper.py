"""`switchsd claims`: the paper's quantitative claims against the runs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, errors, progress_bars
from .options import DEFAULT, Model, load_lens

if TYPE_CHECKING:
    from ...runs import Run


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
    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.pages.tables import to_markdown
    from ...analysis.paper.claims import shown_claims
    from ...analysis.paper.claims_run import write_claims
    from ...analysis.traces.trace import CounterfactualTrace
    from ...runs import Run

    Run.check(run)
    if bench is None and Run(run).exists() and Run(run).manifest().get("command") == "bench":
        bench = run
    for path, said in ((bench, "--bench"), (profile, "--profile")):
        if path is not None and not path.exists():
            raise SwitchSDError(f"{said} {path} does not exist")
    traced = tokenizer = None
    if Run(trace).exists():
        lens = load_lens(model, "cpu", "float32")
        traced, tokenizer = CounterfactualTrace.read(trace, lens), lens.tokenizer
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


def figures_command(
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Run folder to draw; may repeat. All under runs/ if left out."),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Of html, svg and pdf, with commas in between.")
    ] = "html",
    out: Annotated[Path, typer.Option(help="Run folder to write.")] = Path("runs/figures"),
    only: Annotated[
        list[str] | None, typer.Option(help="Figure or table by name, as in figure3; may repeat.")
    ] = None,
) -> None:
    """Write the paper's Figures 2-6 and Tables 1-3, each with its data and a caption."""
    from ...analysis.paper.figures import check_formats, collect, items, write_figures
    from ...runs import Run

    kinds = list(dict.fromkeys(part.strip() for part in formats.split(",") if part.strip()))
    check_formats(kinds)
    Run.check(out)
    catalogue = items(_tokenizer)
    unknown = [name for name in only or [] if name not in catalogue]
    if unknown:
        raise SwitchSDError(f"no figure {unknown[0]!r}: choose among {', '.join(catalogue)}")
    wanted = {name: item for name, item in catalogue.items() if not only or name in only}
    sources = _runs(run, out)
    made = collect(sources, wanted, problems=_tell)
    if not made:
        needed = "; ".join(dict.fromkeys(item.command for item in wanted.values()))
        raise SwitchSDError(
            f"{', '.join(str(each.path) for each in sources)}: none of these runs holds "
            f"{', '.join(wanted)}; make one with: {needed}"
        )
    config = {"runs": [str(each.path) for each in sources], "formats": kinds, "only": only}
    done = Run.start(out, command="figures", config=config)
    with progress_bars() as progress:
        problem = write_figures(done, made, wanted, kinds, progress=progress)
    done.finish()
    for name, item in wanted.items():
        where = f"from {made[name].run}" if name in made else f"missing: {item.command}"
        console.print(f"{name:<12} {where}", soft_wrap=True, markup=False)
    console.print(f"figures: {done.path / 'figures'}", soft_wrap=True)
    if problem is not None:
        raise SwitchSDError(problem)


def _runs(named: list[Path] | None, out: Path) -> list[Run]:
    from ...runs import Run, list_runs

    own = out.resolve()
    if named and own in {path.resolve() for path in named}:
        raise SwitchSDError(
            f"{out} is to be drawn and to be written: name another folder with --out"
        )
    if named:
        return [Run(path) for path in named]
    found = [each for each in list_runs(Path("runs")) if each.path.resolve() != own]
    found = [each for each in found if _readable(each)]
    if not found:
        raise SwitchSDError("no run folder under runs/: make one, as with `switchsd demo`")
    return found


def _tell(problem: str) -> None:
    errors.print(problem, soft_wrap=True, markup=False)


def _readable(run: Run) -> bool:
    """A damaged run is no reason to draw nothing of the others; one that is named raises."""
    try:
        run.manifest()
    except SwitchSDError as error:
        _tell(f"left out: {error}")
        return False
    return True


def _tokenizer(model: str) -> Any:
    """The tokenizer of a traced model, without its weights."""
    from transformers import AutoTokenizer

    from ...probing.default_model import default_model_folder

    folder = default_model_folder() if model == DEFAULT else model
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise SwitchSDError(f"no tokenizer of {model}, which Figure 2 needs: {error}") from error
