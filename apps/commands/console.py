"""Progress bars and messages of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ...progress import Progress as Report

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars for `progress` callbacks, one for each thing being done; a plain line each where the
    output is no terminal."""
    if not console.is_terminal:
        yield _lines()
        return
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield report


def _lines() -> Report:
    shown: dict[str, int] = {}

    def report(what: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth != shown.get(what):
            shown[what] = tenth
            console.print(f"{what}: {done}/{total}", soft_wrap=True)

    return report
