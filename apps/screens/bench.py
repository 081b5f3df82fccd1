"""The viewer's page about speed: a run's tables and speedups, and two runs side by side."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ...analysis.bench.speeds import compare, run_speeds
from ...analysis.figures.speeds import policy_speedups
from ...errors import SwitchSDError
from ...runs import Run
from ..view.address import literal, remembered_choice
from ..view.downloads import show_figure, show_table
from ..view.run_data import RunEntry, open_run

COMMANDS = ("bench", "demo", "replay")
_MOST_DRAWN = 40
_NONE = "no other run"
_TABLES = {
    "table1": "Table 1: throughput with EAGLE-3",
    "table2": "Table 2: throughput with a small draft model",
    "table3": "Table 3: the best lookahead",
    "temperatures": "Temperatures",
    "divergences": "Texts that leave transformers' own",
    "repetitions": "Accidental and intended repetitions",
    "repetition_examples": "Examples of repetitions",
    "oracle_share": "Share of what an oracle would gain",
    "runs": "Every run",
}


def bench_page(folder: Path, run: Run, entries: list[RunEntry]) -> None:
    """Draw the speeds of a run, and beside another's where one is chosen."""
    speeds = run_speeds(run)
    left, right = st.columns(2)
    with left:
        names = list(dict.fromkeys(speeds["set"].astype(str)))
        chosen = remembered_choice(
            "set", names, key=f"choice:bench:set:{run.path.name}",
            help="Prompts of one benchmark, or all together.",
        )  # fmt: skip
    with right:
        others = [
            entry.name for entry in entries
            if entry.command in COMMANDS and entry.name != run.path.name
        ]  # fmt: skip
        other = remembered_choice(
            "against", [_NONE, *others], key=f"choice:bench:against:{run.path.name}",
            help="Another run to set beside it: policies and sets that both have.",
        )  # fmt: skip
    shown = speeds[speeds["set"].astype(str) == chosen]
    st.subheader("Speed", anchor=False)
    if shown["speedup"].notna().any():
        drawn = shown.dropna(subset=["speedup"])
        fastest = drawn.nlargest(_MOST_DRAWN, "speedup")
        less = f" The {_MOST_DRAWN} fastest of {len(drawn)}." if len(fastest) < len(drawn) else ""
        show_figure(
            "speedups", policy_speedups(drawn[drawn.index.isin(fastest.index)]), shown,
            caption="Tokens per second over those of one-by-one decoding, decode time only." + less,
        )  # fmt: skip
    else:
        st.info("This run holds no times: replay with a latency profile (`switchsd profile`).")
    show_table("speeds", speeds.round(4))
    if other != _NONE:
        _beside(folder, run, other, speeds)
    _tables(run)


def _beside(folder: Path, run: Run, other: str, speeds: pd.DataFrame) -> None:
    st.subheader("Two runs", anchor=False)
    try:
        table = compare(speeds, run_speeds(open_run(folder, other)))
    except SwitchSDError as error:
        st.error(literal(str(error)))
        return
    if table.empty:
        st.info(f"{literal(run.path.name)} and {literal(other)} share no policy and set.")
        return
    show_table(
        "comparison", table.round(4),
        caption=f"1 is {run.path.name}, 2 is {other}; speed ratio: 2 over 1. Runs of different "
        "machines, dtypes or prompts do not compare.",
    )  # fmt: skip


def _tables(run: Run) -> None:
    present = [name for name in _TABLES if run.has_table(name)]
    for name in present:
        with st.expander(_TABLES[name]):
            try:
                show_table(name, run.table(name))
            except SwitchSDError as error:
                st.error(literal(str(error)))
