"""The viewer's page about one token: which parts of the model make the probe say copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from ...analysis.figures.explain import (
    attention_to_source,
    head_map,
    kind_shares,
    score_against_share,
    waterfall,
)
from ...analysis.pages.linked_view import Choice, LinkedText, view_parts
from ...analysis.pages.token_view import legend_html
from ...errors import SwitchSDError
from ...runs import Run, require
from ..view.address import (
    address_number,
    literal,
    put_in_address,
    remembered_choice,
    said_in_words,
)
from ..view.downloads import show_figure, show_table
from ..view.panel import panel
from ..view.run_data import RunEntry, content_key, open_run

_LINKED: dict[str, Any] = {"kinds": kind_shares, "head_link": score_against_share}
"""Tables of a study that are drawn with its head scores, and how."""

_NO_STEPS = pd.DataFrame(
    columns=["step", "position", "path", "proposed", "accepted", "emitted", "match_length"]
)


def explain_page(folder: Path, run: Run, entries: Sequence[RunEntry]) -> None:
    """Draw an explained prompt, or the heads of a model, with what other runs add."""
    if run.has_table("parts"):
        _prompt(run)
        _beside(folder, run, entries)
        return
    others = sorted(path.stem for path in run.path.glob("*.parquet"))
    if not others:
        raise SwitchSDError(f"{run.path.name} has no tables to show yet; let the run finish")
    if run.has_table("head_scores"):
        _heads(run)
    drawn = ("head_scores", *_LINKED) if run.has_table("head_scores") else ()
    for name in others:
        if name not in drawn:
            with st.expander(name.replace("_", " ").capitalize()), said_in_words():
                show_table(name, run.table(name))


def _beside(folder: Path, run: Run, entries: Sequence[RunEntry]) -> None:
    """Every head's induction scores, from a study in the same folder."""
    for entry in entries:
        if not entry.command.startswith("explain") or entry.name == run.path.name:
            continue
        study = open_run(folder, entry.name)
        if study.has_table("head_scores"):
            st.caption(f"Induction scores are those of {literal(entry.name)}.")
            _heads(study)
            return
    st.info("For every head's induction scores make a run with `switchsd explain study`.")


def _prompt(run: Run) -> None:
    tokens, parts, about = run.table("tokens"), run.table("parts"), run.metrics()
    require(tokens, "tokens", "position", "text", "in_prompt", "copied", "source", "score")
    require(parts, "parts", "part", "kind", "layer", "index", "value")
    explained = int(about.get("token", -1))
    if not 0 <= explained < len(tokens):
        raise SwitchSDError(f"{run.path.name} does not say which token it explains; make it again")
    st.subheader("The text", anchor=False)
    _text(run, tokens, explained)
    st.subheader("The probe's logit, part by part", anchor=False)
    show_figure(
        "waterfall", waterfall(parts, top=15), parts,
        caption=f"Log-odds at token {explained}, read at {about.get('read', '–')}: the parts sum "
        f"to {float(about.get('logit', np.nan)):+.3f}.",
    )  # fmt: skip
    heads = parts[parts["kind"] == "head"].rename(columns={"index": "head"})
    if heads.empty:
        return
    show_figure("head_attribution", head_map(heads, "value", "log-odds"), heads,
                caption="What every head adds to the probe's logit.")  # fmt: skip
    if run.has_table("sources"):
        _sources(run, tokens, heads, int(about.get("copy_source", -1)))


def _text(run: Run, tokens: pd.DataFrame, explained: int) -> None:
    key = f"explain:{content_key(run)}"  # a run made anew under the same name begins anew
    if key not in st.session_state:
        first = "explain:seen" not in st.session_state  # later the address is another text's
        wanted = address_number("explained", 0, len(tokens) - 1) if first else None
        st.session_state[key] = Choice(token=explained if wanted is None else int(wanted))
        st.session_state["explain:seen"] = True
    path = np.where(tokens["in_prompt"], "prompt", np.where(tokens["copied"], "copy", "plain"))
    shown = tokens.assign(step=-1, path=path)
    choice: Choice = st.session_state[key]
    parts = view_parts(LinkedText(shown, _NO_STEPS), choice)

    def go(event: str) -> None:
        st.session_state[key] = st.session_state[key].after(event)

    panel({**parts, "lengths": "", "steps": "", "legend": legend_html()}, key="explain_panel",
          on_go=go, chosen=choice.token)  # fmt: skip
    put_in_address("explained", choice.token)
    if choice.token is not None and choice.token != explained:
        st.info(
            f"This run explains token {explained}. For token {choice.token} make another one, with "
            f"the same text and `--token {choice.token}`."
        )


def _sources(run: Run, tokens: pd.DataFrame, heads: pd.DataFrame, copy_source: int) -> None:
    sources = run.table("sources")
    require(sources, "sources", "layer", "head", "source", "attention", "value")
    order = heads.reindex(heads["value"].abs().sort_values(ascending=False).index)
    pairs = zip(order["layer"].tolist(), order["head"].tolist(), strict=True)
    names = [f"{int(layer)}.{int(head)}" for layer, head in pairs]
    st.subheader("Source tokens", anchor=False)
    name = remembered_choice(
        "head", names, help="Layer and head, the largest part first: where it looks, and what it "
        "brings from there.",
    )  # fmt: skip
    layer, head = (int(number) for number in name.split("."))
    mine = sources[(sources["layer"] == layer) & (sources["head"] == head)]
    for column, words in (("attention", "where it looks"), ("value", "what it adds from there")):
        drawn = attention_to_source(mine, tokens, copy_source, column=column)
        show_figure(f"head_{column}", drawn, mine, caption=f"Head {name}: {words}.")


def _heads(run: Run) -> None:
    st.subheader("Induction scores of all heads", anchor=False)
    table = run.table("head_scores")
    scores = [
        str(name) for name in table.columns
        if name not in ("layer", "head") and pd.api.types.is_numeric_dtype(table[name])
        and not str(name).endswith(("_low", "_high", "_uniform", "_shuffled"))
    ]  # fmt: skip
    if not scores:
        raise SwitchSDError(f"{run.path.name}'s head scores are damaged; make the run again")
    first = next((name for name in scores if name.startswith("prefix_matching")), scores[0])
    score = remembered_choice(
        "score",
        scores,
        default=first,
        help="What a head is scored by; see the report of `switchsd explain`.",
    )
    show_figure("induction_scores", head_map(table, score, score.replace("_", " ")), table)
    for name, draw in _LINKED.items():
        if run.has_table(name):
            linked = run.table(name)
            show_figure(name, draw(linked), linked)
    show_table("head_scores", table)
