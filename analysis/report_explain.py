"""The study's report: figures on pages of their own, and `report.html` and `report.md` with all.

Reads the run folder's tables and metrics, runs no model. Each figure is written to
`figures/<name>.html` too, and its data to `figures/<name>.csv`.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from ..runs import Run, write_text
from . import causal_figures as draw
from .causal_words import (
    ablated,
    carried_by,
    headlines,
    linked,
    number,
    patched,
    steered,
    surface,
    with_interval,
)
from .explain_study_figures import FIGURES
from .figure_style import FIGURE_CONFIG
from .report_page import cards, facts, folded, page, paragraph, section
from .tables import to_html, to_markdown

Words = Callable[[dict[str, Any]], str | list[str]]

SECTIONS: tuple[tuple[str, Words, tuple[str, ...]], ...] = (
    ("What the probe's logit is made of", carried_by, ("kinds", "attribution-map", "waterfall")),
    (
        "Are these the induction heads?",
        linked,
        ("link", "induction-map", "copy-source-map", "copying-map"),
    ),
    (
        "Ablation",
        ablated,
        (
            *("ablation-auroc", "ablation-auroc-given-match", "ablation-probability"),
            *("ablation-accepted", "ablation-loss"),
        ),
    ),
    (
        "Patching",
        patched,
        (
            *("patching-copy", "patching-probe", "patching-agreement"),
            "patching-agreement-probe",
        ),
    ),
    ("Steering", steered, ("steering-taken-up", "steering-kept", "steering-loss")),
    ("Intent or surface?", surface, ("matched", "matched-parts")),
)


def write_explain_report(run: Run) -> Path:
    """Write `report.html`, `report.md` and `figures/` into the run's folder.

    Returns:
        The page's path.

    Raises:
        SwitchSDError: a table or metric that is missing or damaged, or a folder that cannot be
            written.
    """
    metrics, folder = run.metrics(), run.path / "figures"
    said = headlines(metrics)
    write_text(folder / "plotly.min.js", get_plotlyjs())
    body = _head(metrics, said) + _what_ran(run, metrics)
    for title, words, names in SECTIONS:
        told = words(metrics)
        texts = [told] if isinstance(told, str) else told
        shown = "".join(_figure(run, name) for name in names)
        body += section(title, *map(paragraph, texts), shown)
    tables = _tables(metrics)
    for title, table in tables.items():
        body += section(f"Table: {title}", _scroll(to_html(table)))
    path = run.path / "report.html"
    title = f"What makes {metrics['model']} copy?"
    write_text(path, page(title, body, script=f"<script>{get_plotlyjs()}</script>"))
    lines = "\n".join(f"- {line}" for line in said)
    told = "\n".join(f"## {name}\n\n{to_markdown(table)}\n" for name, table in tables.items())
    write_text(run.path / "report.md", f"# {title}\n\n{lines}\n\n{told}")
    return path


def _tables(metrics: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The study's tables as words, each figure with its interval."""
    steered, matched = metrics["steering"]["rows"], metrics["matched_study"]
    changes = ("taken_up_change", "kept_change", "loss_elsewhere_change")
    return {
        "ablations": ablation_table(metrics),
        "separation by kind": _worded(metrics["kinds"], ("kind", "parts"), ("separation", "share")),
        "patching": _worded(metrics["patching"]["totals"], ("target", "kind"), ("share",)),
        "steering": _worded(steered, ("direction", "dose"), changes),
        "matched positions": _worded(
            matched["scores"], ("score", "n_positions"), ("auroc", "auroc_within", "first_gain")
        ),
        "matched positions by kind": _worded(matched["kinds"], ("kind",), ("difference", "share")),
    }


def _worded(
    rows: list[dict[str, Any]], names: tuple[str, ...], figures: tuple[str, ...]
) -> pd.DataFrame:
    words = [
        {name.replace("_", " "): str(row[name]) for name in names}
        | {name.replace("_", " "): with_interval(row, name) for name in figures}
        for row in rows
    ]
    return pd.DataFrame(words)


def ablation_table(metrics: dict[str, Any]) -> pd.DataFrame:
    """Every ablation as words: each figure with its interval."""
    rows = []
    for row in metrics["ablation"]:
        words = {"heads": _set_name(row["heads"]), "k": str(row["k"])}
        words["below the site"] = f"{row['below_site']:g}"
        words["draws"] = str(row["draws"])
        for name in (
            *("probe_auroc", "probe_auroc_given_match", "copy_probability"),
            *("accepted_copy_length", "loss_elsewhere"),
        ):
            words[draw.FIGURE_NAMES[name]] = with_interval(row, name)
        rows.append(words)
    return pd.DataFrame(rows)


def _head(metrics: dict[str, Any], said: list[str]) -> str:
    k = metrics["headline_k"]
    rows = {(row["heads"], row["k"]): row for row in metrics["ablation"]}
    clean, gone = rows["none", 0], rows["induction", k]
    within = metrics["matched_study"]["scores"][0]
    return (
        f"<h1>What makes {html.escape(str(metrics['model']))} copy?</h1>"
        + paragraph("Which heads carry the copy signal, and what happens without them.", "lead")
        + cards(
            [
                (
                    f"top {metrics['top_overlap']['k']} in both rankings",
                    str(metrics["top_overlap"]["overlap"]),
                    f"chance {metrics['top_overlap']['chance']:.1f}",
                ),
                (
                    f"accepted length, {k} induction heads ablated",
                    number(gone["accepted_copy_length"], 2),
                    f"{number(clean['accepted_copy_length'], 2)} with all heads",
                ),
                (
                    "probe AUROC, matched positions",
                    number(within["auroc_within"]),
                    f"{number(within['auroc_within_low'])}–{number(within['auroc_within_high'])}",
                ),
            ]
        )
        + "<ul>"
        + "".join(f"<li>{html.escape(line)}</li>" for line in said)
        + "</ul>"
    )


def _what_ran(run: Run, metrics: dict[str, Any]) -> str:
    manifest, probe = run.manifest(), metrics["probe"]
    bench = ", ".join(f"{row['benchmark']} {row['prompts']}" for row in metrics["benchmarks"])
    rows: list[tuple[str, object]] = [
        ("model", metrics["model"]),
        ("dtype", metrics["dtype"]),
        ("probe", f"{probe['site']}, label offset {probe['label_offset']}"),
        ("trained to say", str((probe.get("metrics") or {}).get("target", "–"))),
        ("prompts", bench),
        (
            "attribution sums to the logit within",
            f"{metrics['attribution_max_relative_error']:.1e}",
        ),
        ("took", f"{float(metrics.get('seconds') or 0):.0f} s"),
    ]
    settings = list((manifest.get("config") or {}).items())
    return section("What ran", facts(rows), folded("Settings", facts(settings)))


def _figure(run: Run, name: str) -> str:
    """A figure for the page; on the way its own page and its data are written."""
    source, make, caption = FIGURES[name]
    table = run.table(source)
    body = make(table).to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config=FIGURE_CONFIG
    )
    script = '<script src="plotly.min.js"></script>'
    shown = f"<figure>{body}<figcaption>{html.escape(caption)}</figcaption></figure>"
    write_text(run.path / "figures" / f"{name}.html", page(name, shown, script=script))
    write_text(run.path / "figures" / f"{name}.csv", table.to_csv(index=False))
    return shown


def _scroll(inner: str) -> str:
    return f'<div class="scroll">{inner}</div>'


def _set_name(kind: str) -> str:
    return draw.HEAD_SETS[kind][0] if kind in draw.HEAD_SETS else "none"
