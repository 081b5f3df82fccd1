"""The viewer's page on which a model decodes: choose, press, and watch the tokens arrive."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ...analysis.figures.words import policy_name
from ...analysis.pages.linked_view import Choice, LinkedText, view_parts
from ...analysis.pages.token_view import legend_html
from ...data.token_texts import token_texts
from ...errors import SwitchSDError
from ...probing.default_model import DEFAULT_MODEL
from ..view.address import (
    address_number,
    literal,
    put_in_address,
    remembered_choice,
    said_in_words,
)
from ..view.downloads import table_downloads
from ..view.job import LONGEST_PROMPT, Job, Request, check_prompt, is_loaded
from ..view.panel import panel
from ..view.run_data import policies

OWN = "my own prompt"
EXAMPLE = (
    "Write a Python function that adds the numbers of a list, then write the same function again "
    "with a docstring."
)
_POLL_SECONDS = 0.5
_MOST = 8192  # new tokens
_LISTED = 50  # prompts of a benchmark that can be chosen


def live_page() -> None:
    """Draw the form, and what the model is decoding."""
    request = _form()
    job: Job | None = st.session_state.get("live:job")
    left, right = st.columns([1, 5])
    running = job is not None and job.running
    begin = left.button("Decode", type="primary", disabled=running, help=_button_help(request))
    if right.button("Stop", disabled=not running, help="Ends after the step that is being made."):
        assert job is not None
        job.stop()
    if begin:
        check_prompt(request.prompt)
        job = st.session_state["live:job"] = Job.start(request)
        st.session_state["live:choice"] = Choice()
        st.rerun()
    if job is not None:
        # a fragment keeps drawing itself while tokens arrive, and only then
        st.fragment(_watch, run_every=_POLL_SECONDS if job.running else None)()


def _form() -> Request:
    model_column, policy_column, prompt_column = st.columns([2, 1, 2])
    model = model_column.text_input(
        "Model",
        DEFAULT_MODEL,
        key="live:model",
        help="The embedded default model, a local folder, or a Hugging Face id (asks the hub).",
    )
    with policy_column:
        policy = remembered_choice(
            "policy",
            policies(),
            shown=policy_name,
            help="What decides, step by step, whether to copy or to draft.",
            key="live:policy",
            known=policies(),
        )
    with prompt_column:
        source = _source()
    prompt = _prompt(source)
    with st.expander("More settings"):
        a, b, c, d = st.columns(4)
        budget = a.number_input(
            "New tokens", 1, _MOST, int(address_number("tokens", 1, _MOST) or 128),
            help="Budget; the text may end before.", key="live:budget",
        )  # fmt: skip
        tau = b.number_input(
            "τ", 0.0, 1.0, None, 0.01, placeholder="the probe's own", key="live:tau",
            help="SwitchSD copies where the probe's score is at least τ.",
        )  # fmt: skip
        dtype = c.selectbox(
            "dtype", ["float32", "bfloat16", "float16"], key="live:dtype",
            help="float32 is token-exact; bfloat16 takes half the memory.",
        )  # fmt: skip
        device = d.text_input("Device", "cpu", key="live:device", help="As in cpu or cuda.")
        raw = st.checkbox(
            "Complete the text as it stands", key="live:raw",
            help="Without the model's chat format around it.",
        )  # fmt: skip
    put_in_address("tokens", int(budget))
    return Request(model.strip(), device.strip(), dtype, policy, prompt, int(budget), tau, raw)


def _source() -> str:
    from ...data.benchmarks import BENCHMARKS

    return st.selectbox(
        "Prompt", [OWN, *BENCHMARKS], key="live:source",
        help="Your own text, or one of a benchmark's (its first turn).",
    )  # fmt: skip


def _prompt(source: str) -> str:
    if source == OWN:
        return st.text_area(
            "Text", EXAMPLE, key="live:text", height=100,
            help=f"Up to {LONGEST_PROMPT:,} characters, and no more tokens than the context holds.",
        )  # fmt: skip
    rows = _benchmark(source)
    number = st.selectbox(
        "Which one", range(len(rows)), key=f"live:{source}",
        format_func=lambda row: rows[row][0], help=f"The first {_LISTED} of the benchmark.",
    )  # fmt: skip
    text = rows[number][1]
    with st.expander("The prompt"):
        st.text(text)
    return text


@st.cache_data(max_entries=8, show_spinner="Reading the benchmark…")
def _benchmark(name: str) -> list[tuple[str, str]]:
    from ...data.benchmarks import load_benchmark

    frame = load_benchmark(name, limit=_LISTED)
    return [
        (str(prompt_id), turns[0])
        for prompt_id, turns in zip(frame["prompt_id"], frame["turns"], strict=True)
    ]


def _button_help(request: Request) -> str:
    if is_loaded(request.model, request.device, request.dtype):
        return "The model is in memory."
    return "Loads the model first, once: a few seconds for the default model."


def _watch() -> None:
    """What the job is doing; drawn again and again while it runs."""
    with said_in_words():
        _draw(st.session_state["live:job"])


def _draw(job: Job) -> None:
    if job.state == "failed":
        st.error(literal(job.said))
    decoding = job.decoding
    if decoding is None:
        if job.running:
            st.progress(0.0, text=literal(job.said))
        else:
            _settle(job)
        return
    trace = decoding.trace
    new = len(trace.generated)
    share = min(new / max(job.request.max_new_tokens, 1), 1.0)
    seconds = trace.decode_ms / 1e3
    said = f"{new:,} tokens in {len(trace.steps):,} steps"
    if seconds:
        said += f", {new / seconds:.1f} tokens/s"
    ended = {"stopped": ", stopped", "done": f", ended by {trace.finish}"}.get(job.state, " …")
    st.progress(1.0 if job.state == "done" else share, text=f"{said}{ended}")
    tokens = trace.tokens_frame()
    tokens["text"] = _texts(decoding, tokens["id"].tolist())
    steps = trace.steps_frame()
    steps["ms"] = steps[["draft_ms", "verify_ms", "overhead_ms"]].sum(axis=1)
    choice: Choice = st.session_state["live:choice"]
    if job.running and choice.start is None and choice.token is None:
        choice = Choice(choice.token, choice.lengths, choice.span, int(tokens["position"].max()))
    tau = decoding.policy.gate.tau
    panel(
        {**view_parts(LinkedText(tokens, steps), choice), "legend": legend_html(tau)},
        key="live_panel",
        on_go=_go,
        chosen=choice.token,
        follow=job.running and choice.token is None,
    )
    if not job.running:
        with st.container(horizontal=True):
            table_downloads("decoded tokens", tokens)
            table_downloads("decoded steps", steps)
    _settle(job)


def _settle(job: Job) -> None:
    """Once it has ended: draw the whole page again, which stops the polling."""
    if not job.running and st.session_state.get("live:settled") is not job:
        st.session_state["live:settled"] = job
        st.rerun()


def _texts(decoding: Any, ids: list[int]) -> list[str]:
    """Each token's text; those that were whole before are not decoded again."""
    tokenizer = decoding.lens.tokenizer
    if tokenizer is None:
        return [f"⟨{token}⟩" for token in ids]
    kept: tuple[Any, list[str]] | None = st.session_state.get("live:texts")
    texts = list(kept[1]) if kept is not None and kept[0] is decoding else []
    settled = max(0, len(texts) - 1)
    while settled and "\ufffd" in texts[settled - 1]:  # begin again where a character begins
        settled -= 1
    texts = texts[:settled] + token_texts(ids[settled:], tokenizer.decode)
    st.session_state["live:texts"] = (decoding, texts)
    return texts


def _go(event: str) -> None:
    try:
        st.session_state["live:choice"] = st.session_state["live:choice"].after(event)
    except SwitchSDError as error:
        st.warning(literal(str(error)))
