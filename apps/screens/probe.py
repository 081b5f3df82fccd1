"""The viewer's page about probes: where the model says it will copy, and what to doubt in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from ...analysis.figures.probing import (
    auroc_by_set,
    controls,
    families,
    given_match,
    offsets,
    probe_families,
    scored_probe,
    training_tokens,
    tries,
)
from ...analysis.figures.sites import layer_sweep, site_heatmap
from ...analysis.figures.thresholds import (
    calibration,
    confusion_by_corpus,
    roc,
    roc_by_set,
    tau_curves,
)
from ...errors import SwitchSDError
from ...runs import Run
from ..view.address import literal, put_in_address
from ..view.downloads import show_figure


@dataclass(frozen=True)
class Study:
    """One part of the page.

    Attributes:
        table: of the run; a run without it does without the part.
        draw: the figure of it.
        says: what to see in it.
        called: name of its downloads; the table's if left out.
    """

    table: str
    draw: Callable[[pd.DataFrame], Any]
    says: str
    called: str = ""

    @property
    def name(self) -> str:
        """What its downloads are called."""
        return self.called or self.table


def probe_page(run: Run) -> None:
    """Draw what the run has; a damaged table is said in its place and the rest is shown."""
    metrics = run.metrics()
    if not isinstance(metrics, dict):
        raise SwitchSDError(f"{run.path / 'metrics.json'} is damaged; make the run again")
    groups = _studies(scored_probe(metrics))
    shown = {
        name: [study for study in studies if run.has_table(study.table)]
        for name, studies in groups.items()
    }
    names = [name for name, studies in shown.items() if studies]
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
        format_func=lambda name: {"auroc": "AUROC", "f1": "F1"}[name],
        help="What the layer × stream map and the curves over layers show.",
    )  # fmt: skip
    put_in_address("part", part)
    for study in shown[str(part)]:
        _part(run, study, metric)


def _part(run: Run, study: Study, metric: str | None) -> None:
    try:
        table = run.table(study.table)
        if study.table == "sites":
            show_figure("site_heatmap", site_heatmap(table, metric or "auroc"), table,
                        caption="Every layer and stream; the best is boxed.")  # fmt: skip
            show_figure("layer_sweep", layer_sweep(table, metric or "auroc"), caption=study.says)
            return
        show_figure(study.name, study.draw(table), table, caption=study.says)
    except (SwitchSDError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        st.error(literal(f"{study.table}: {error}"))


def _studies(probe: dict[str, Any]) -> dict[str, list[Study]]:
    tau = probe.get("tau")
    own = float(tau) if isinstance(tau, (int, float)) else 0.5

    def roc_of(table: pd.DataFrame) -> Any:
        return roc_by_set(table) if "set" in table else roc(table, own)

    def curves(table: pd.DataFrame) -> Any:
        names = list(table["set"].unique())
        return tau_curves(table, tau=own, of="all" if "all" in names else names[0])

    return {
        "Layer × stream": [Study("sites", site_heatmap, "The same over layers.")],
        "ROC and calibration": [
            Study("probe_test", roc_of, "Test tokens, prompts never seen in training."),
            Study("calibration", calibration, "On the diagonal a score is a probability."),
            Study("evaluation", auroc_by_set, "The probe on each set, with and without loops."),
            Study("evaluation", given_match, "Where a copy is on offer: does the probe know more "
                  "than the surface does?", "given_match"),
        ],
        "τ sweep": [
            Study("tau_sweep", curves, f"The line is this probe's own threshold, {own:.3f}."),
        ],
        "Corpora": [
            Study("corpora", confusion_by_corpus, "The same probe trained on three corpora."),
            Study("families", families, "Where the probe is strong and where it is weak."),
            Study("training_tokens", training_tokens, "How many tokens a probe needs."),
        ],
        "Label offset": [Study("offsets", offsets, "How far ahead the state is asked to know.")],
        "Controls": [
            Study("controls", controls, "What a probe reaches on labels that mean nothing."),
            Study("probe_families", probe_families, "Whether more than a line buys anything."),
            Study("tries", tries, "Every attempt, also those that did not help."),
        ],
    }  # fmt: skip
