"""What a threshold would do to a text: the panel's parts at a τ that nothing was decoded with."""

from __future__ import annotations

import html
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from ...analysis.figures.acceptance import HeatRow
from ...analysis.pages.linked_view import LinkedText
from ...analysis.pages.path_rows import rows_of_trace
from ...analysis.pages.tables import to_html
from ...analysis.pages.token_view import legend_html
from ...errors import SwitchSDError
from ...runs import Run
from .run_data import DecodeData
from .trace_data import profile_of, profiles_at, texts_of, traced

if TYPE_CHECKING:
    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.replay.text import ReplayedText
    from ...analysis.traces.trace import CounterfactualTrace

HOW_TO_PROFILE = "switchsd profile --out {folder}/profile.json"
GATED = "switchsd"
"""The policy that τ belongs to."""


def at_tau(
    folder: Path,
    run: Run,
    trace: Run,
    data: DecodeData | None,
    prompt_id: str,
    tau: float,
) -> tuple[LinkedText, dict[str, str]]:
    """The text as SwitchSD would decode it at τ, and what that is predicted to cost.

    Args:
        folder: the folder of runs, where a latency profile may lie.
        run: the run that is shown; its W, D and n are taken where it is a decoded one.
        trace: the trace of the prompt.
        data: the run's texts; None where the trace itself is shown.
        prompt_id: whose text.
        tau: threshold.

    Returns:
        The text, and the panel's parts `legend`, `tau` and `predicted`.
    """
    with st.spinner("Reading the trace…") if data is None else nullcontext():
        laid = _laid(folder, trace, prompt_id, None if data is None else data.tokens)
        asked = {} if data is None else _copying(run)
        traced_probe = probe_of(trace)
        own = float(traced_probe.get("tau", tau))
        found, said = laid.at(tau, own, asked)
    text = LinkedText(found.tokens, found.steps, laid.heat, laid.rows, found.wants)
    about = f"Predicted from {trace.path.name}, all its prompts, no model run."
    about += other_probe(data, traced_probe)
    if laid.profile is None:
        about += f" For speeds measure what steps cost: {HOW_TO_PROFILE.format(folder=folder)}"
    back = ""
    if data is not None:
        back = '<button data-go="tau:recorded">back to the text as recorded</button>'
    elif tau != own:
        back = f'<button data-go="tau:{own}">back to {own:.2f}</button>'
    return text, {
        "legend": legend_html(tau, wants=True),
        "tau": f"<span>{tau:.2f}, replayed</span>{back}",
        "predicted": f"{to_html(said)}<div class='note'>{html.escape(about)}</div>",
    }


def probe_of(trace: Run | None) -> dict[str, Any]:
    """`site`, `tau` … of the probe whose scores a trace holds; empty without one."""
    if trace is None:
        return {}
    config = trace.manifest().get("config")
    probe = config.get("probe") if isinstance(config, dict) else None
    known = isinstance(probe, dict) and isinstance(probe.get("tau"), (int, float))
    return dict(probe) if isinstance(probe, dict) and known else {}


def other_probe(data: DecodeData | None, traced_probe: dict[str, Any]) -> str:
    """Says so where the trace's scores are not those of the run's own probe."""
    mine, its = (data.probe if data is not None else {}), traced_probe
    if None in (mine.get("site"), its.get("site")) or mine["site"] == its["site"]:
        return ""
    return (
        f" The trace's scores are of the probe at {its.get('site')} (τ {its['tau']:.2f}), this "
        f"run's of the one at {mine['site']}."
    )


@dataclass(frozen=True)
class _Laid:
    """A traced prompt with all that does not depend on τ."""

    trace: CounterfactualTrace
    alone: CounterfactualTrace
    texts: list[str]
    heat: pd.DataFrame
    rows: list[HeatRow]
    profile: LatencyProfile | None

    def at(
        self, tau: float, own: float, asked: dict[str, Any]
    ) -> tuple[ReplayedText, pd.DataFrame]:
        """The text at τ, and the predictions there and at the probe's own."""
        from ...analysis.replay.settings import Setting
        from ...analysis.replay.text import predicted_row, replayed_text, sums_of

        here, there = Setting(GATED, tau=tau, **asked), Setting(GATED, tau=own, **asked)
        found = replayed_text(self.alone, here, self.texts, profile=self.profile)
        rows = [
            predicted_row(at, sums_of(self.trace, setting, self.profile))
            for at, setting in ((tau, here), (own, there))
        ]
        return found, pd.DataFrame(rows)


def _laid(folder: Path, run: Run, prompt_id: str, known: pd.DataFrame | None) -> _Laid:
    trace = traced(run)

    def lay() -> _Laid:
        from ...analysis.replay.text import one_prompt

        alone = one_prompt(trace, prompt_id)
        heat, rows = rows_of_trace(alone.positions)
        texts = texts_of(alone.texts[0], _model(run), known)
        return _Laid(trace, alone, texts, heat, rows, profile)

    made = profiles_at(folder)  # one that is made while the page is open counts at once
    profile = trace.once(("profile", made), lambda: _usable(folder, trace))
    return trace.once(("laid", prompt_id, made), lay)


def _usable(folder: Path, trace: CounterfactualTrace) -> LatencyProfile | None:
    """The folder's profile if it has every cost that SwitchSD has on this trace."""
    from ...analysis.replay.settings import Setting
    from ...analysis.replay.text import sums_of

    profile = profile_of(folder, trace.fingerprint, trace.dtype)
    try:
        sums_of(trace, Setting(GATED), profile)
    except SwitchSDError:
        return None  # without times then, and said
    return profile


def _copying(run: Run) -> dict[str, int]:
    """W, D and n of a decoded run, where its manifest says them."""
    config = run.manifest().get("config")
    said = config if isinstance(config, dict) else {}
    return {name: said[name] for name in ("W", "D", "n") if isinstance(said.get(name), int)}


def _model(run: Run) -> str:
    model = run.manifest().get("model")
    return str(model.get("name", "")) if isinstance(model, dict) else ""
