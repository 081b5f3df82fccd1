"""Which pages the viewer has, which runs each can show, and how to make one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from ...runs import Run
from ..view.address import literal, remembered_choice
from ..view.run_data import (
    DECODED,
    TRACED,
    DecodeData,
    RunEntry,
    list_entries,
    newest_complete,
    open_run,
)
from ..view.trace_data import load

RECORDED, LIVE = "A run's texts", "Decode now"


@dataclass(frozen=True)
class Page:
    """A page of the viewer.

    Attributes:
        commands: whose runs it shows.
        make: how to make such a run.
        about: what it shows, in a sentence.
        draw: draws it.
    """

    commands: tuple[str, ...]
    make: str
    about: str
    draw: Callable[[Path, Run, list[RunEntry]], None]

    def shows(self, entry: RunEntry) -> bool:
        """Whether a run is listed: one of its commands' (`explain heads` is `explain`'s too), or a
        damaged one of who knows which."""
        return entry.state == "damaged" or any(
            entry.command == name or entry.command.startswith(f"{name} ") for name in self.commands
        )


def show(folder: Path) -> None:
    """Draw the chosen page on the chosen run."""
    entries = list_entries(folder)
    with st.sidebar:
        name = _choose_page()
    page = PAGES[name]
    if name == "Decode" and _live():
        from .live import live_page

        live_page()
        return
    mine = [entry for entry in entries if page.shows(entry)]
    if not mine:
        _no_run(folder, page, entries)
        return
    with st.sidebar:
        states = {entry.name: entry.state for entry in mine}
        chosen = remembered_choice(
            "run",
            list(states),
            default=newest_complete(mine),
            shown=lambda run: run if states[run] == "complete" else f"{run} ({states[run]})",
            help="Runs that this page can show, newest first. One that is not complete is marked.",
            key=f"choice:run:{name}",
            known=[entry.name for entry in entries],
        )
    if _can_show(next(entry for entry in mine if entry.name == chosen), page, folder):
        page.draw(folder, open_run(folder, chosen), entries)


def _choose_page() -> str:
    names = list(PAGES)
    if st.session_state.get("choice:page") not in names:
        wanted = st.query_params.get("page", names[0])
        st.session_state["choice:page"] = wanted if wanted in names else names[0]
    name = st.radio(
        "Page",
        names,
        key="choice:page",
        captions=[PAGES[name].about for name in names],
        help="Each page shows runs of the commands that write what it needs.",
    )
    st.query_params["page"] = str(name)
    return str(name)


def _live() -> bool:
    if "choice:mode" not in st.session_state:
        live = st.query_params.get("mode") == "live"
        st.session_state["choice:mode"] = LIVE if live else RECORDED
    mode = st.segmented_control(
        "What to look at",
        [RECORDED, LIVE],
        key="choice:mode",
        required=True,
        label_visibility="collapsed",
        help="Texts that a run has kept, or a model that decodes while you watch.",
    )
    live = mode == LIVE
    if live:
        st.query_params["mode"] = "live"
    elif "mode" in st.query_params:
        del st.query_params["mode"]
    return live


def _no_run(folder: Path, page: Page, entries: list[RunEntry]) -> None:
    st.title("No run yet" if not entries else "No run of this kind yet", anchor=False)
    st.markdown(f"There is none in {literal(str(folder.resolve()))}. Make one with")
    st.code(page.make.format(folder=folder), language="bash")
    st.markdown("or, if yours are elsewhere, say where:")
    st.code("streamlit run apps/viewer.py -- --runs FOLDER", language="bash")


def _can_show(entry: RunEntry, page: Page, folder: Path) -> bool:
    if entry.state == "damaged":
        st.error(literal(entry.problem))
        st.markdown("Choose another run on the left, or make a new one with")
        st.code(page.make.format(folder=folder), language="bash")
        return False
    if entry.state == "running":
        st.info(
            f"{literal(entry.name)} is not complete: what it has written so far is shown. "
            "The command that began it goes on from there."
        )
    return True


def _decode(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    from .decode import decode_page, trace_page

    if run.manifest().get("command") in TRACED:
        trace_page(folder, run)
        return
    data = load(run)
    with st.sidebar:
        _describe(data)
    decode_page(folder, run, data, entries)


def _acceptance(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    from .acceptance import acceptance_page

    acceptance_page(run)


def _probe(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    from .probe import probe_page

    probe_page(run)


def _explain(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    from .explain import explain_page

    explain_page(folder, run, entries)


def _bench(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    from .bench import bench_page

    bench_page(folder, run, entries)


PAGES = {
    "Decode": Page(DECODED + TRACED, "make demo", "texts, token by token", _decode),
    "Acceptance": Page(DECODED + TRACED, "make demo", "how long drafts are accepted", _acceptance),
    "Probe lab": Page(
        ("probe study", *DECODED),
        "switchsd probe study --run {folder}/probing",
        "where the model says that it will copy",
        _probe,
    ),
    "Explain": Page(
        ("explain",),
        'switchsd explain --prompt "Repeat: to be, or not to be" --run {folder}/explain-prompt',
        "which heads and tokens",
        _explain,
    ),
    "Bench": Page(
        ("bench", *DECODED, "replay"),
        "switchsd bench --run {folder}/bench",
        "speeds, and two runs compared",
        _bench,
    ),
}
"""Pages by name, in the order in which they are listed."""


def _describe(data: DecodeData) -> None:
    lines: list[tuple[str, Any]] = [("Model", data.model), ("dtype", data.dtype)]
    if data.probe:
        lines += [("Probe site", str(data.probe.get("site", "–")))]
        tau, auroc = data.tau(), data.probe.get("auroc")
        lines += [("τ", f"{tau:.3f}")] if tau is not None else []
        lines += [("AUROC", f"{auroc:.3f}")] if isinstance(auroc, float) else []
    st.markdown("  \n".join(f"{name}: **{literal(value)}**" for name, value in lines if value))
