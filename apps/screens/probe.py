"""The viewer's page about probes: where the model says it will copy, and what to doubt in it."""

from __future__ import annotations

import streamlit as st

from ...analysis.figures.probing import scored_tau
from ...analysis.figures.words import METRIC_NAMES
from ...analysis.pages.figure_files import Recipe
from ...analysis.pages.run_figures import probing_figures
from ...errors import SwitchSDError
from ...runs import Run
from ..view.address import literal, put_in_address
from ..view.downloads import show_figure


def probe_page(run: Run) -> None:
    """Draw what the run has; a damaged table is said in its place and the rest is shown."""
    metrics = run.metrics()
    if not isinstance(metrics, dict):
        raise SwitchSDError(f"{run.path / 'metrics.json'} is damaged; make the run again")
    tau = scored_tau(metrics)
    shown = [each for each in probing_figures(tau).values() if run.has_table(each.table)]
    names = list(dict.fromkeys(each.part for each in shown if each.part))
    if not names:
        raise SwitchSDError(f"{run.path.name} has no probing tables yet; let the run finish")
    if st.session_state.get("probe:part") not in names:
        wanted = st.query_params.get("part")
        st.session_state["probe:part"] = wanted if wanted in names else names[0]
    left, right = st.columns([4, 1])
    part = left.segmented_control(
        "What to look at", names, key="probe:part", required=True,
        help="Parts for which this run has tables.",
    )  # fmt: skip
    metric = right.segmented_control(
        "Metric of the sites", ["auroc", "f1"], default="auroc", required=True, key="probe:metric",
        format_func=METRIC_NAMES.__getitem__,
        help="What the layer × stream map and the curves over layers show.",
    )  # fmt: skip
    put_in_address("part", part)
    for name, recipe in probing_figures(tau, metric or "auroc").items():
        if recipe.part == part and run.has_table(recipe.table):
            _figure(run, name, recipe)


def _figure(run: Run, name: str, recipe: Recipe) -> None:
    try:
        drawn = recipe.of(run)
        show_figure(name, drawn.figure, drawn.table, caption=drawn.caption)
    except (SwitchSDError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        st.error(literal(f"{recipe.table}: {error}"))
