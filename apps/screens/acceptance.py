"""The viewer's page about acceptance: how long drafts are accepted, what the probe knows of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ...analysis.figures.acceptance import (
    acceptance_by_set,
    accepted_by_probe_state,
    accepted_histogram,
)
from ...analysis.figures.words import policy_name
from ...analysis.replay.acceptance import (
    SPAN,
    by_path,
    by_probe_state,
    maximum_ratio,
    set_of,
    yields_of_positions,
)
from ...analysis.traces.trace import CounterfactualTrace
from ...errors import SwitchSDError
from ...runs import Run
from ..view.address import address_number, put_in_address, remembered_choice
from ..view.downloads import show_figure, show_table, table_downloads
from ..view.run_data import TRACED, content_key, policies
from ..view.trace_data import prompts_of

_MOST_ROWS = 400_000  # positions that are read at once; a larger trace is shown in part


def acceptance_page(run: Run) -> None:
    """Draw the page on a decoded run or on a trace."""
    if run.manifest().get("command") in TRACED:
        _traced(run)
    else:
        _decoded(run)


def _decoded(run: Run) -> None:
    from ..view.trace_data import load

    data = load(run)
    policy = remembered_choice(
        "policy", data.policies(), shown=policy_name, key="choice:acceptance:policy",
        known=policies(), help="Whose steps to count; plain steps draft nothing.",
    )  # fmt: skip
    _, steps = data.selection(policy)
    steps = steps.assign(set=set_of(steps["prompt_id"]))
    chosen = _set(steps["set"])
    shown = steps if chosen == "all" else steps[steps["set"] == chosen]
    st.subheader("By path", anchor=False)
    drafted = shown[shown["path"] != "plain"]
    show_figure(
        "accepted_by_path", accepted_histogram(shown), shown,
        caption=f"{len(shown):,} steps of {shown['prompt_id'].nunique()} prompts. Accepted leaves "
        "out the bonus token.",
    )  # fmt: skip
    if len(drafted):
        longest = int(drafted["proposed"].max())
        show_table(
            "acceptance_by_path", by_path(drafted, longest=longest),
            caption="95 % intervals over prompts; maximum: the share of steps with "
            f"{longest} accepted, the longest draft there was.",
        )  # fmt: skip
    if data.copy_yield.empty:
        st.info("This run has no table of what copying would have brought at every position.")
        return
    mine = data.copy_yield.assign(set=set_of(data.copy_yield["prompt_id"]))
    _by_state(mine if chosen == "all" else mine[mine["set"] == chosen])


def _traced(run: Run) -> None:
    probe = (run.manifest().get("config") or {}).get("probe") or {}
    prompts = prompts_of(run)
    chosen = _set(prompts["set"])
    own = probe.get("tau")
    if not isinstance(own, (int, float)):
        raise SwitchSDError(f"{run.path.name} was traced without a probe: nothing to split by")
    if "acceptance:tau" not in st.session_state:
        wanted = address_number("tau", 0, 1)
        st.session_state["acceptance:tau"] = round(float(own), 2) if wanted is None else wanted
    tau = st.slider(
        "τ", 0.0, 1.0, step=0.01, key="acceptance:tau",
        help=f"The probe is on where its score is at least τ; its own is {own:.3f}.",
    )  # fmt: skip
    put_in_address("tau", f"{tau:.2f}")
    rows = prompts["ids"].map(len) - prompts["n_prompt"]
    first = prompts["prompt_id"][rows.cumsum().shift(fill_value=0) <= _MOST_ROWS]
    positions = _positions(*content_key(run), tuple(first))
    if len(first) < len(prompts):
        st.info(
            f"A large trace: the first {len(first):,} of its {len(prompts):,} prompts are counted."
        )
    names = prompts.set_index("prompt_id")["set"]
    table = yields_of_positions(positions, tau)
    table["set"] = table["prompt_id"].map(names)
    _by_state(table if chosen == "all" else table[table["set"] == chosen])


def _by_state(table: pd.DataFrame) -> None:
    st.subheader("By the probe's state", anchor=False)
    if table.empty:
        st.info("No position has room for a whole copy: decode or trace more tokens.")
        return
    show_figure(
        "accepted_by_probe_state", accepted_by_probe_state(table), table,
        caption=f"{len(table):,} positions of {table['prompt_id'].nunique()} prompts: what copying "
        "there would have had accepted, whichever path was taken.",
    )  # fmt: skip
    summary = by_probe_state(table)
    st.subheader("Maximum-length yield", anchor=False)
    ratio = maximum_ratio(summary)
    said = [f"{name}: {value:.1f} times as often" for name, value in ratio.dropna().items()]
    st.markdown(
        f"All {SPAN} tokens of a copy are accepted with the probe on, against with it off – "
        + ("; ".join(said) or "never with the probe off, so there is no ratio")
        + "."
    )
    show_figure("maximum_length_yield", acceptance_by_set(summary, "maximum"))
    show_figure("mean_accepted", acceptance_by_set(summary, "mean"))
    st.dataframe(summary, hide_index=True, width="stretch")
    table_downloads("acceptance_by_probe_state", summary)


def _set(sets: pd.Series) -> str:
    names = ["all", *dict.fromkeys(sets.astype(str))]
    return remembered_choice(
        "set", names, key="choice:acceptance:set", help="Count the prompts of one benchmark only."
    )


@st.cache_resource(max_entries=2, show_spinner="Reading the positions…")
def _positions(path: str, changed: tuple[int, ...], prompt_ids: tuple[str, ...]) -> pd.DataFrame:
    columns = ("copy_n3", "match_length_n3")
    return CounterfactualTrace.read(Path(path), prompt_ids=prompt_ids, columns=columns).positions
