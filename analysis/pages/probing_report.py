"""The lab's figures on disk: each as a page of its own and as the CSV it was drawn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ...runs import Run, write_text
from ..figures import probing as draw
from ..figures import thresholds as threshold
from ..figures.sites import layer_sweep, site_heatmap
from ..figures.style import FIGURE_CONFIG
from .page import page, paragraph

Draw = Callable[[pd.DataFrame, Run], go.Figure]

FIGURES: dict[str, tuple[str, Draw, str]] = {
    "layer-stream": (
        "sites",
        lambda table, run: layer_sweep(table, "auroc"),
        "AUROC of a logistic probe at every layer and stream on CopyDiversity test prompts; the "
        "hidden state at j answers for the token at j + 2. After the paper's Figure 5.",
    ),
    "layer-stream-f1": (
        "sites",
        lambda table, run: layer_sweep(table, "f1"),
        "F1 at the τ chosen on validation, at every layer and stream.",
    ),
    "site-heatmap": (
        "sites",
        lambda table, run: site_heatmap(table, "auroc"),
        "The same AUROC as a map; the best site is boxed.",
    ),
    "evaluation": (
        "evaluation",
        lambda table, run: draw.auroc_by_set(table),
        "The probe of the paper's label at offset 2, trained on CopyDiversity only. 95 % intervals "
        "over prompts.",
    ),
    "given-match": (
        "evaluation",
        lambda table, run: draw.given_match(table),
        "Only positions where the context offers a copy; the question is whether three or more "
        "copied tokens would be accepted.",
    ),
    "given-match-without-loops": (
        "evaluation",
        lambda table, run: draw.given_match(table, loops="without"),
        "The same without tokens in loops.",
    ),
    "corpora": (
        "corpora",
        lambda table, run: threshold.confusion_by_corpus(table),
        "Probes from three training corpora on MT-Bench; rows sum to 1. After the paper's "
        "Figure 4.",
    ),
    "tau": (
        "tau_sweep",
        lambda table, run: threshold.tau_curves(table, tau=run.metrics()["label_probe"]["tau"]),
        "All four benchmarks; the marked τ was chosen on CopyDiversity validation prompts. After "
        "the paper's Figure 6, left.",
    ),
    "roc": (
        "probe_test",
        lambda table, run: threshold.roc_by_set(table),
        "ROC of the label probe on each set. After the paper's Figure 6, right.",
    ),
    "calibration": (
        "calibration",
        lambda table, run: threshold.calibration(table),
        "Ten bins of score; below the diagonal the probe claims more copying than there is.",
    ),
    "offsets": (
        "offsets",
        lambda table, run: draw.offsets(table),
        "A probe for each label offset, trained, thresholded and tested at itself.",
    ),
    "training-tokens": (
        "training_tokens",
        lambda table, run: draw.training_tokens(table),
        "Whole prompts, drawn anew for each point.",
    ),
    "probe-families": (
        "probe_families",
        lambda table, run: draw.probe_families(table),
        "Probe families at the label probe's site.",
    ),
    "controls": (
        "controls",
        lambda table, run: draw.controls(table),
        "The same fit on real labels and on labels that hold no copy mode, CopyDiversity test.",
    ),
    "families": (
        "families",
        lambda table, run: draw.families(table),
        "CopyDiversity test prompts by template family, most copied at the top.",
    ),
    "tries": (
        "tries",
        lambda table, run: draw.tries(table),
        "What else was tried, each trained on CopyDiversity only.",
    ),
}
"""Name → (table, figure function, caption)."""


def write_probing_figures(run: Run) -> list[Path]:
    """Write `figures/<name>.html` and `.csv` for every table that the run has.

    Raises:
        SwitchSDError: a table that is damaged, or a folder that cannot be written.
    """
    folder, written = run.path / "figures", []
    write_text(folder / "plotly.min.js", get_plotlyjs())
    for name, (source, make, caption) in FIGURES.items():
        if not run.has_table(source):
            continue
        table = run.table(source)
        body = make(table, run).to_html(
            full_html=False, include_plotlyjs=False, div_id=name, config=FIGURE_CONFIG
        )
        path = folder / f"{name}.html"
        script = '<script src="plotly.min.js"></script>'
        write_text(path, page(name, body + paragraph(caption, "note"), script=script))
        write_text(folder / f"{name}.csv", table.to_csv(index=False))
        written.append(path)
    return written
