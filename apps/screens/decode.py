"""The viewer's page about decoding: a text of a run, or one that is being written, looked at."""

from __future__ import annotations

from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd
import streamlit as st

from ...analysis.figures.acceptance import HeatRow
from ...analysis.figures.words import policy_name
from ...analysis.pages.linked_view import Choice, LinkedText, view_parts
from ...analysis.pages.path_rows import rows_of_trace, rows_of_yield
from ...analysis.pages.tables import decoding_table, to_html
from ...analysis.pages.token_view import legend_html
from ...errors import SwitchSDError
from ...probing.default_model import DEFAULT_MODEL
from ...runs import Run
from ..view.address import (
    address_number,
    choice_from_address,
    choice_to_address,
    put_in_address,
    remembered_choice,
    said_in_words,
)
from ..view.downloads import figure_download, table_downloads
from ..view.panel import panel
from ..view.run_data import DecodeData, RunEntry, policies
from ..view.threshold import GATED, at_tau, other_probe, probe_of
from ..view.trace_data import HOW_TO_TRACE, positions_of, prompts_of, trace_of, warm

_VIEW = "decode:view"


def decode_page(folder: Path, run: Run, data: DecodeData, entries: list[RunEntry]) -> None:
    """Draw a decoded run; what is chosen stays in the address."""
    left, right = st.columns([1, 2])
    with left:
        policy = remembered_choice(
            "policy",
            data.policies(),
            shown=policy_name,
            help="What decides, step by step, whether to copy: see the table of policies below.",
            known=policies(),
        )
    with right:
        prompt_id = remembered_choice(
            "prompt", data.prompts(policy), help="Which prompt's text to look at."
        )
    _headline(data, policy)
    tokens, _ = data.selection(policy, prompt_id)
    ids = tokens.sort_values("position")["id"].tolist() if "id" in tokens else []
    trace = trace_of(folder, entries, _fingerprint(run), prompt_id, ids) if ids else None
    recorded = _recorded(data, policy, prompt_id, trace)
    _linked(folder, run, trace, data, policy, prompt_id, recorded)
    if policy == GATED and trace is None:
        _how_to_trace(folder, run)
    _tables(data, policy, prompt_id)


def trace_page(folder: Path, run: Run) -> None:
    """Draw a traced text as SwitchSD would decode it at any τ."""
    prompts = prompts_of(run)
    prompt_id = remembered_choice(
        "prompt", prompts["prompt_id"].tolist(), help="Which traced prompt to look at."
    )
    _linked(folder, run, run, None, GATED, prompt_id, None)


@st.fragment
def _linked(
    folder: Path,
    run: Run,
    trace: Run | None,
    data: DecodeData | None,
    policy: str,
    prompt_id: str,
    recorded: LinkedText | None,
) -> None:
    """The panel; only this is drawn again when something in it is chosen."""
    with said_in_words():
        _draw(folder, run, trace, data, policy, prompt_id, recorded)


def _draw(
    folder: Path,
    run: Run,
    trace: Run | None,
    data: DecodeData | None,
    policy: str,
    prompt_id: str,
    recorded: LinkedText | None,
) -> None:
    view = _view((str(run.path), policy, prompt_id))
    traced = probe_of(trace)
    own = data.tau() if data is not None else traced.get("tau")
    gated = trace is not None and policy == GATED and own is not None
    text, more = recorded, {"legend": legend_html(own)}
    shown_tau = None
    if gated and trace is not None and own is not None:
        shown_tau = own if view["tau"] is None else view["tau"]
        if view["tau"] is not None or recorded is None:
            text, more = at_tau(folder, run, trace, data, prompt_id, shown_tau)
        else:
            more["tau"] = f"<span>{own:.2f}, as recorded</span>"
    if text is None:
        raise SwitchSDError(f"{run.path.name} was traced without a probe: it has no score to gate")
    choice: Choice = view["choice"]
    if choice.token is not None and choice.token > (last := int(text.tokens["position"].max())):
        choice = view["choice"] = choice.after(f"token:{last}")
    heat = ""
    if text.rows:
        heat = "<h4>What each path would have given</h4>Accepted tokens if a step began there."
        heat += escape(other_probe(data, traced))
    panel(
        {**view_parts(text, choice), **more, "heat_title": heat},
        key="decode_panel",
        on_go=_go,
        chosen=choice.token,
        tau=shown_tau,
    )
    choice_to_address(choice)
    put_in_address("tau", None if view["tau"] is None else f"{view['tau']:.2f}")
    first = int(data.probe.get("label_offset", 0)) if data is not None and data.probe else None
    if first is not None and choice.token is not None and choice.token >= first:
        _how_to_explain(folder, run, policy, prompt_id, choice.token)
    with st.container(horizontal=True):
        table_downloads("tokens", text.tokens)
        table_downloads("steps", text.steps)
        if text.rows:
            table_downloads("paths", text.heat.rename_axis("position").reset_index())
            figure_download("paths", lambda: _heatmap(text))
        figure_download("accepted_lengths", lambda: _histogram(text.steps))
    if gated:
        warm()


def _view(identity: tuple[str, ...]) -> dict[str, Any]:
    """What is chosen in this text; another text begins with nothing chosen but the same τ."""
    view = st.session_state.get(_VIEW)
    if view is None:
        view = {
            "identity": identity,
            "choice": choice_from_address(),
            "tau": address_number("tau", 0, 1),
        }
    elif view["identity"] != identity:
        view = {"identity": identity, "choice": Choice(), "tau": view["tau"]}
    st.session_state[_VIEW] = view
    return view


def _go(event: str) -> None:
    view = st.session_state[_VIEW]
    kind, _, value = event.partition(":")
    if kind == "tau":
        view["tau"] = None if value == "recorded" else min(max(float(value), 0.0), 1.0)
    else:
        view["choice"] = view["choice"].after(event)


def _histogram(steps: pd.DataFrame) -> Any:
    from ...analysis.figures.acceptance import accepted_histogram

    return accepted_histogram(steps)


def _heatmap(text: LinkedText) -> Any:
    from ...analysis.figures.acceptance import paths_heatmap

    return paths_heatmap(text.heat, text.rows)


def _recorded(data: DecodeData, policy: str, prompt_id: str, trace: Run | None) -> LinkedText:
    tokens, steps = data.selection(policy, prompt_id)
    heat = pd.DataFrame()
    rows: list[HeatRow] = []
    if trace is not None:
        heat, rows = rows_of_trace(positions_of(trace, prompt_id))
    elif len(data.copy_yield) and "prompt_id" in data.copy_yield:
        mine = data.copy_yield[data.copy_yield["prompt_id"] == prompt_id]
        if len(mine):
            heat, rows = rows_of_yield(mine)
    if "ms" not in steps:  # version 0.1 kept its parts alone
        parts = [name for name in ("draft_ms", "verify_ms", "overhead_ms") if name in steps]
        steps = steps.assign(ms=steps[parts].sum(axis=1))
    return LinkedText(tokens, steps, heat, rows)


def _headline(data: DecodeData, policy: str) -> None:
    rows = data.decoding[data.decoding["policy"] == policy]
    if rows.empty:
        st.info("The decoding table has no row for this policy.")
        return
    row = decoding_table(rows).iloc[0]
    help_texts = {
        "tokens/s": "Decoded tokens per second, over all prompts.",
        "speed over vanilla": "Tokens per second over those of one-by-one decoding.",
        "copy steps": "Share of steps that took the copy path.",
        "accepted a copy": "Tokens accepted in a step that copied, without the bonus token.",
        "accepted a draft": "The same in a step that verified a neural draft.",
        "token-exact": "Whether every text was the target's own greedy text, token for token.",
    }
    for column, (name, words) in zip(st.columns(len(help_texts)), help_texts.items(), strict=True):
        column.metric(name, row[name], help=words)


def _how_to_explain(folder: Path, run: Run, policy: str, prompt_id: str, token: int) -> None:
    st.caption(f"Which heads and source tokens made the score at token {token}:")
    st.code(
        f"switchsd explain --of {quote(str(run.path))} --prompt-id {quote(prompt_id)} "
        f"--policy {policy} --token {token} --run {quote(str(folder / 'explain-prompt'))}"
        + _same_model(run),
        language="bash",
    )
    st.caption("It takes some seconds; then choose its run on the page Explain.")


def _same_model(run: Run) -> str:
    """Options for the run's model and dtype, where they are not the commands' own."""
    config = run.manifest().get("config")
    said = config if isinstance(config, dict) else {}
    usual = {"model": DEFAULT_MODEL, "dtype": "float32"}
    return "".join(
        f" --{name} {quote(str(said[name]))}"
        for name, value in usual.items()
        if said.get(name, value) != value
    )


def _how_to_trace(folder: Path, run: Run) -> None:
    with st.expander("Move τ without running the model"):
        st.markdown(
            "A counterfactual trace knows, for every position, what each path would have had "
            "accepted. With one of this prompt and model beside this run there is a slider for τ "
            "here, and what it would cost. Make one with"
        )
        own = run.path / "probe"
        probe = f" --probe {quote(str(own))}" if own.is_dir() else ""
        command = HOW_TO_TRACE.format(folder=folder) + probe + _same_model(run)
        st.code(command, language="bash")


def _tables(data: DecodeData, policy: str, prompt_id: str) -> None:
    st.subheader("All policies", anchor=False)
    st.html(f'<div class="sw-table">{to_html(decoding_table(data.decoding))}</div>')
    table_downloads("decoding", data.decoding)


def _fingerprint(run: Run) -> str:
    model = run.manifest().get("model")
    return str(model.get("fingerprint", "")) if isinstance(model, dict) else ""
