"""The viewer: `streamlit run apps/viewer.py [-- --runs FOLDER]` opens the newest complete run.

Only the shell: which run, and what to say when it cannot be shown. The pages are modules of
`switchsd.apps`; what they show comes from tested functions of `switchsd.analysis`. Nothing here
imports a model library, so the page is there in seconds.

Streamlit runs this file as a script, hence the absolute imports.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import streamlit as st
from switchsd.apps.decode_page import decode_page
from switchsd.apps.url_state import literal, remembered_choice
from switchsd.apps.viewer_data import (
    DecodeData,
    RunEntry,
    content_key,
    list_entries,
    load_decode,
    newest_complete,
    open_run,
    runs_folder,
)
from switchsd.errors import SwitchSDError
from switchsd.runs import Run


def main() -> None:
    """Draw the whole page; a mistake in what it was given is said in words and the app stays up."""
    st.set_page_config(page_title="SwitchSD Lab", page_icon="🔀", layout="wide")
    st.html("<style>.stMainBlockContainer { padding-top: 4.25rem; }</style>")
    try:
        _show(runs_folder(sys.argv[1:], os.environ))
    except (SwitchSDError, OSError) as error:
        st.error(literal(str(error)))


def _show(folder: Path) -> None:
    entries = list_entries(folder)
    with st.sidebar:
        st.title("SwitchSD Lab", anchor=False)
        st.caption("When does a language model copy from its context, and what does knowing save?")
    if not entries:
        _no_run(folder)
        return
    with st.sidebar:
        states = {entry.name: entry.state for entry in entries}
        name = remembered_choice(
            "run",
            [entry.name for entry in entries],
            default=newest_complete(entries),
            shown=lambda run: run if states[run] == "complete" else f"{run} ({states[run]})",
            help="Newest first. A run that is not complete is marked.",
        )
    if not _can_show(next(entry for entry in entries if entry.name == name)):
        return
    data = _load(open_run(folder, name))
    with st.sidebar:
        _describe(data)
    decode_page(data)


def _no_run(folder: Path) -> None:
    st.title("No run yet", anchor=False)
    st.markdown(f"There is no run in {literal(str(folder.resolve()))}. Make one with")
    st.code("make demo", language="bash")
    st.markdown("or, if yours are elsewhere, say where:")
    st.code("streamlit run apps/viewer.py -- --runs FOLDER", language="bash")


def _can_show(entry: RunEntry) -> bool:
    if entry.state == "damaged":
        st.error(literal(entry.problem))
        st.markdown("Choose another run on the left, or make a new one with `make demo`.")
        return False
    if entry.state == "running":
        st.info(
            f"{literal(entry.name)} is not complete: what it has written so far is shown. "
            "`make demo` goes on from there."
        )
    return True


def _load(run: Run) -> DecodeData:
    return _read(*content_key(run))


@st.cache_resource(max_entries=4, show_spinner="Reading the run…")
def _read(path: str, changed: tuple[int, ...]) -> DecodeData:
    return load_decode(Run(Path(path)))


def _describe(data: DecodeData) -> None:
    lines = [("Model", data.model), ("dtype", data.dtype)]
    if data.probe:
        lines += [("Probe site", str(data.probe.get("site", "–")))]
        tau, auroc = data.tau(), data.probe.get("auroc")
        lines += [("τ", f"{tau:.3f}")] if tau is not None else []
        lines += [("AUROC", f"{auroc:.3f}")] if isinstance(auroc, float) else []
    st.markdown("  \n".join(f"{name}: **{literal(value)}**" for name, value in lines if value))


main()
