"""`switchsd figures`: the paper's Figures 2–6 and Tables 1–3 from run folders, on disk.

<folder>/figures/<name>.html   self-contained; and as .svg and .pdf where they are asked for
<folder>/figures/<name>.csv    what is drawn
<folder>/figures/captions.md   every caption: what, n, model, dtype, intervals, and the run
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...progress import Progress, silent
from ...runs import Run, write_text
from ..pages.figure_files import figure_page, plotly_inside
from . import finders as source
from . import tables as tables
from .finders import Finder, Found, setting_of
from .font import font_faces
from .static_images import FORMATS as STATIC
from .static_images import write_images
from .style import COLUMN, PAGE, paper

FORMATS = ("html", *STATIC)
_ON_SCREEN = 1.7
_OWN = 0  # height of a table: what its rows need


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper.

    Attributes:
        title: what it shows.
        finders: where to look, the best first.
        command: that makes a run with it.
        width: in CSS pixels.
        height: in CSS pixels.
    """

    title: str
    finders: tuple[Finder, ...]
    command: str
    width: int = COLUMN
    height: int = 200

    def printed(self, found: Found, scale: float = 1.0) -> go.Figure:
        """In print's sizes, times `scale`."""
        height = found.height or self.height or int(found.figure.layout.height)
        return paper(found.figure, width=self.width, height=height, scale=scale)


TRACE = "switchsd trace"
BENCH = "switchsd bench"


def items(tokenizer: Callable[[str], Any]) -> dict[str, Item]:
    """Name → item, in the paper's order.

    Args:
        tokenizer: model name → its tokenizer, for Figure 2.
    """
    return {
        "figure2": Item(
            "Accidental repetitions: the last tokens stood before, and the text goes another way.",
            (lambda run: source.accidental(run, tokenizer),), TRACE, PAGE, _OWN,
        ),
        "figure3": Item(
            "Accepted lengths with the probe on and off.",
            (source.acceptance_of_trace, source.acceptance_of_decoding), TRACE, PAGE, 300,
        ),
        "figure4": Item(
            "Probes from three training corpora on MT-Bench; rows sum to 1.",
            (source.corpora,), "switchsd probe study --study corpora", PAGE, 170,
        ),
        "figure5": Item(
            "AUROC of a linear probe at every layer and stream.",
            (source.layers,), "switchsd probe study --study layers", COLUMN, 230,
        ),
        "figure6-tau": Item(
            "F1, precision and recall over the threshold; the line is the probe's own τ.",
            (source.thresholds,), "switchsd probe study --study thresholds", COLUMN, 210,
        ),
        "figure6-roc": Item(
            "ROC of the probe on each set.",
            (source.roc,), "switchsd probe study --study thresholds", COLUMN, 230,
        ),
        "table1": Item(
            "Throughput and speedup with EAGLE-3.",
            (tables.throughput(1),), BENCH, PAGE, _OWN,
        ),
        "table2": Item(
            "Throughput and speedup with a small draft model (SPS).",
            (tables.throughput(2),), BENCH, PAGE, _OWN,
        ),
        "table3": Item(
            "Best lookahead of a draft alone and inside SwitchSD.",
            (tables.lookahead,),
            f"{BENCH} --trace runs/trace --profile profile.json, all of one dtype",
            PAGE, _OWN,
        ),
    }  # fmt: skip


def collect(
    runs: Sequence[Run],
    catalogue: dict[str, Item],
    *,
    problems: Callable[[str], None] = lambda said: None,
) -> dict[str, Found]:
    """What the runs hold, the best source first and of those the first run.

    Args:
        runs: run folders; one that is not complete is passed over.
        catalogue: what is looked for.
        problems: is told of every run that was passed over, and of every table that could not be
            read; the figure comes from another run then, or not at all.

    Raises:
        SwitchSDError: no run folder.
    """
    complete = []
    for run in runs:
        if run.manifest().get("state") == "complete":
            complete.append(run)
        else:
            problems(f"{run.path} is not complete: it is left out until it is")
    made = {}
    for name, item in catalogue.items():
        for finder, run in ((finder, run) for finder in item.finders for run in complete):
            try:
                found = finder(run)
                if found is None:
                    continue
                caption = f"{item.title} {setting_of(run)}; {found.caption}."
                item.printed(found)  # what cannot be drawn is told before anything is written
            except SwitchSDError as error:
                problems(f"{name} cannot be made from {run.path}: {error}")
            except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
                problems(f"{name} cannot be made from {run.path}: {error!r}")
            else:
                made[name] = replace(found, caption=caption, run=run.path)
                break
    return made


def write_figures(
    run: Run,
    made: dict[str, Found],
    catalogue: dict[str, Item],
    formats: Sequence[str] = FORMATS,
    *,
    progress: Progress = silent,
) -> str | None:
    """Write everything that was found, and metrics `figures_written`, `captions` and `missing`.

    Args:
        run: to write into.
        made: what was found.
        catalogue: of everything there could be.
        formats: of `FORMATS`; CSV and captions are written whatever they are, and HTML where static
            images cannot be drawn.
        progress: told what is being drawn.

    Returns:
        Why there are no static images; None if they are there or were not asked for.

    Raises:
        SwitchSDError: an unknown format, or a folder that cannot be written.
    """
    check_formats(formats)
    folder = run.path / "figures"
    for name, each in made.items():
        write_text(folder / f"{name}.csv", each.table.to_csv(index=False))
    missing = {name: item.command for name, item in catalogue.items() if name not in made}
    write_text(folder / "captions.md", _captions(made, missing))
    written, problem = _static(folder, made, catalogue, formats)
    if "html" in formats or problem is not None:
        for number, (name, each) in enumerate(made.items()):
            progress("figures", number, len(made))
            write_text(folder / f"{name}.html", _page(name, each, catalogue[name]))
            written.append(f"{name}.html")
        progress("figures", len(made), max(len(made), 1))
    run.update_metrics(
        figures_written=written,
        captions={name: each.caption for name, each in made.items()},
        missing=missing,
        static_problem=problem,
    )
    return problem


def check_formats(formats: Sequence[str]) -> None:
    """Raise `SwitchSDError` on a format that is none."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown or not formats:
        raise SwitchSDError(
            f"{'unknown format ' + repr(unknown[0]) if unknown else 'no format'}: choose among "
            f"{', '.join(FORMATS)}"
        )


def _static(
    folder: Path, made: dict[str, Found], catalogue: dict[str, Item], formats: Sequence[str]
) -> tuple[list[str], str | None]:
    kinds = [kind for kind in formats if kind in STATIC]
    if not kinds:
        return [], None
    drawn = {name: catalogue[name].printed(each) for name, each in made.items()}
    try:
        return [path.name for path in write_images(drawn, kinds, folder)], None
    except SwitchSDError as error:
        return [], str(error)


def _page(name: str, found: Found, item: Item) -> str:
    light = f"<style>{font_faces()} :root {{ color-scheme: light; }}</style>"
    drawn = item.printed(found, _ON_SCREEN)
    return figure_page(name, drawn, found.caption, light + plotly_inside())


def _captions(made: dict[str, Found], missing: dict[str, str]) -> str:
    lines = ["# Captions", ""]
    for name, each in made.items():
        lines += [f"**{name}** {each.caption} (`{each.run}`)", ""]
    for name, command in missing.items():
        lines += [f"**{name}** is in none of the runs; `{command}` makes it.", ""]
    return "\n".join(lines)
