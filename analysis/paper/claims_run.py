"""Write the claims and the figures of traces into a run folder, beside what lies there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ...errors import SwitchSDError
from ...runs import Run, write_text
from ..cost.profile import LatencyProfile
from ..figures.acceptance import accepted_by_probe, accidental_table, attempts_in_vain
from ..pages.figure_files import Drawn, write_figure_files
from ..pages.page import page
from ..pages.tables import scrolled, to_markdown
from ..replay.acceptance import accepted_by_state, both_paths
from ..replay.repetitions import repetition_examples
from ..replay.settings import Setting
from ..traces.trace import CounterfactualTrace
from .claim_steps import bench_steps, claimed_steps, copy_attempts, sampled_steps
from .claims import claims_table, shown_claims, untestable
from .claims_decoding import Measured, decoding_claims
from .claims_probing import probing_claims
from .claims_traces import trace_claims

COMMAND = "claims"
_CAPTIONS = {
    "figure2": "The last three tokens stood before, and not a token of what followed then came "
    "now: the longest such repetitions of each set, outside loops. After the paper's Figure 2.",
    "figure2-attempts": "Copies of which nothing was accepted, among those each policy tried.",
    "figure3": "Share of accepted lengths with the probe on and off; D = 20, copies that the "
    "budget would have cut left out. After the paper's Figure 3.",
}


def write_claims(
    path: Path,
    *,
    probing: Path | None = None,
    bench: Path | None = None,
    trace: CounterfactualTrace | None = None,
    profile: LatencyProfile | None = None,
    tokenizer: Any = None,
) -> pd.DataFrame:
    """Judge every claim by the runs that are there.

    Writes claims.parquet, claims.md, claims.html, the key `claims` of `metrics.json` and, of a
    trace, Figures 2 and 3 with the tables they draw. Other files and keys in the folder stay.

    Args:
        path: run folder; a benchmark's may be named.
        probing: run of `switchsd probe study`; None: those claims are not measured yet.
        bench: run of `switchsd bench`: speeds, and counts where there is no trace.
        trace: counts, and with a profile also speeds where there is no benchmark.
        profile: what steps cost.
        tokenizer: of the traced model; without it Figure 2 is not drawn.

    Returns:
        `claims.claims_table`.

    Raises:
        SwitchSDError: a folder that is another command's run, or a profile of another model.
    """
    if trace is not None and profile is not None:
        profile.check(trace.fingerprint)
    counts, times = _measured(bench, trace, profile)
    rows = [
        *decoding_claims(counts, times),
        *trace_claims(trace, profile),
        *probing_claims(None if probing is None else Run(probing)),
        *untestable(),
    ]
    table = claims_table(rows)
    run = _open(path)
    shown = shown_claims(table)
    run.write_table("claims", table)
    write_text(run.path / "claims.md", to_markdown(shown))
    body = f"<h1>The paper's claims, here</h1>{scrolled(shown)}"
    write_text(run.path / "claims.html", page("Claims", body, script=""))
    run.update_metrics(claims=table.astype(object).where(table.notna(), None).to_dict("records"))
    if trace is not None and counts is not None:
        _write_figures(run, trace, counts.steps, tokenizer)
    if run.manifest()["command"] == COMMAND:
        run.finish()
    return table


def _measured(
    bench: Path | None, trace: CounterfactualTrace | None, profile: LatencyProfile | None
) -> tuple[Measured | None, Measured | None]:
    live = None
    if bench is not None:
        run = Run(bench)
        steps = bench_steps(run)
        note = f"live, {steps['prompt_id'].nunique()} prompts"
        live = Measured(steps, note, sampled_steps(run))
    if trace is None:
        return live, live
    note = f"replayed, {len(trace.prompts)} prompts"
    replayed = Measured(claimed_steps(trace, profile), note, {})
    return replayed, live or (replayed if profile is not None else None)


def _open(path: Path) -> Run:
    """The folder of another command is written into as it stands; else it is begun."""
    run = Run(path)
    if run.exists() and run.manifest().get("command") != COMMAND:
        return run
    return Run.start(path, command=COMMAND, config={})


def _write_figures(
    run: Run, trace: CounterfactualTrace, steps: pd.DataFrame, tokenizer: Any
) -> None:
    tried = copy_attempts(steps[steps["policy"].isin(("copyspec", "switchsd"))])
    drawn = {}

    def add(name: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], go.Figure]) -> None:
        if len(table):
            drawn[name] = Drawn(draw(table), table, _CAPTIONS[name])

    if tokenizer is not None:
        add("figure2", repetition_examples(trace, tokenizer), accidental_table)
    if tried["attempts"].sum():
        add("figure2-attempts", tried, attempts_in_vain)
    try:
        paths = both_paths(trace, Setting("switchsd", D=20))
    except SwitchSDError:  # traced without a probe: there is no SwitchSD run
        paths = pd.DataFrame()
    if len(paths):
        add("figure3", accepted_by_state(paths), accepted_by_probe)
    for name, each in drawn.items():
        run.write_table(name, each.table)
    write_figure_files(run.path / "figures", drawn)
