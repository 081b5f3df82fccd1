"""The viewer's page about decoding: coloured tokens, and beside them the accepted lengths."""

from __future__ import annotations

import streamlit as st

from ..analysis.figure_style import FIGURE_CONFIG
from ..analysis.figures import accepted_histogram
from ..analysis.tables import decoding_table, policy_name
from ..analysis.token_view import TOKEN_CSS, legend_html, tokens_html
from .url_state import remembered_choice
from .viewer_data import DecodeData

_ALL = "all prompts"
_THIS = "this prompt"


def decode_page(data: DecodeData) -> None:
    """Draw the page; what is chosen stays in the address."""
    left, right = st.columns([1, 2])
    with left:
        policy = remembered_choice(
            "policy",
            data.policies(),
            shown=policy_name,
            help="What decides, step by step, whether to copy: see the decoding table below.",
        )
    with right:
        prompt_id = remembered_choice(
            "prompt", data.prompts(policy), help="Which prompt's text to look at."
        )
    _headline(data, policy)
    text, chart = st.columns([5, 3], gap="medium")
    with text:
        _tokens(data, policy, prompt_id)
    with chart:
        _acceptance(data, policy, prompt_id)
    st.subheader("All policies", anchor=False)
    st.dataframe(decoding_table(data.decoding), hide_index=True, width="stretch")


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
        "mean accepted": "Draft tokens accepted a drafting step, without the bonus token.",
        "token-exact": "Whether every text was the target's own greedy text, token for token.",
    }
    for column, (name, words) in zip(st.columns(len(help_texts)), help_texts.items(), strict=True):
        column.metric(name, row[name], help=words)


def _tokens(data: DecodeData, policy: str, prompt_id: str) -> None:
    tokens, steps = data.selection(policy, prompt_id)
    written = tokens[tokens["path"] != "prompt"]
    st.subheader("Tokens", anchor=False)
    st.caption(
        f"{len(written):,} decoded tokens in {steps['step'].nunique():,} steps, after "
        f"{len(tokens) - len(written):,} of prompt. A gap begins a step."
    )
    st.html(f"<style>{TOKEN_CSS}</style>{legend_html(data.tau())}{tokens_html(tokens, steps)}")


def _acceptance(data: DecodeData, policy: str, prompt_id: str) -> None:
    st.subheader("Accepted length", anchor=False)
    scope = st.segmented_control(
        "Steps of",
        [_THIS, _ALL],
        default=_THIS,
        required=True,
        label_visibility="collapsed",
        help="Count the steps of the prompt on the left, or of every prompt of this policy.",
    )
    _, steps = data.selection(policy, prompt_id if scope == _THIS else None)
    if steps.empty:
        st.info("No step was recorded for this choice.")
        return
    st.plotly_chart(accepted_histogram(steps), config=FIGURE_CONFIG, key="accepted")
    st.caption(
        f"{len(steps):,} steps. Accepted leaves out the bonus token; a plain step drafts nothing."
    )
