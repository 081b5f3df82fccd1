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

from ...errors import SwitchSDError
from ...runs import Run, write_text
from ..figures import causal as draw
from ..figures.causal import HEAD_SETS, MEASURE_NAMES
from ..figures.words import number
from ..pages.figure_files import embedded, plotly_inside, write_figure_files
from ..pages.page import cards, facts, folded, page, paragraph, section
from ..pages.run_figures import CAUSAL
from ..pages.tables import scrolled, to_markdown

_ABLATED = ("probe_auroc", "copy_probability", "accepted_copy_length", "loss_elsewhere")

_NEEDED = ("kinds", "top_overlap", "rank_correlation", "ablation", "patching", "steering")


def headlines(metrics: dict[str, Any]) -> list[str]:
    """One sentence a question, each with its interval.

    Raises:
        SwitchSDError: a study that is not finished.
    """
    missing = [name for name in (*_NEEDED, "matched_study", "headline_k") if name not in metrics]
    if missing:
        raise SwitchSDError(f"the study is not finished ({missing[0]} is missing); run it again")
    return [
        carried_by(metrics),
        linked(metrics),
        *ablated(metrics),
        patched(metrics),
        steered(metrics),
        surface(metrics),
    ]


def carried_by(metrics: dict[str, Any]) -> str:
    """Heads against MLPs in the probe's separation of copy from other tokens."""
    kinds = {row["kind"]: row for row in metrics["kinds"]}
    parts = [
        f"{name} {with_interval(kinds[kind], 'share', percent=True)}"
        for kind, name in (
            ("head", "attention heads"), ("mlp", "MLPs"), ("embedding", "the embedding")
        )
        if kind in kinds
    ]  # fmt: skip
    return f"Of the probe's separation of copy tokens from others, {', '.join(parts)}."


def linked(metrics: dict[str, Any]) -> str:
    """Top induction heads and top attribution heads."""
    overlap, rho = metrics["top_overlap"], metrics["rank_correlation"]
    held = metrics["top_induction_share"]
    return (
        f"{overlap['overlap']} of the top {overlap['k']} induction heads are among the top "
        f"{overlap['k']} attribution heads (chance {overlap['chance']:.1f}); rank correlation over "
        f"the {overlap['heads']} heads below the probe's site {rho['value']:.2f} ({rho['low']:.2f} "
        f"to {rho['high']:.2f}). These induction heads hold {held['share']:.1%} of the separation "
        f"({held['low']:.1%} to {held['high']:.1%}), random heads of their layers "
        f"{held['random']:.1%} ({held['random_low']:.1%} to {held['random_high']:.1%})."
    )


def ablated(metrics: dict[str, Any]) -> list[str]:
    """Before and after ablating the headline number of heads, against random heads."""
    rows = {(row["heads"], row["k"]): row for row in metrics["ablation"]}
    k, clean = metrics["headline_k"], rows["none", 0]
    found = []
    for kind in ("induction", "induction_below", "attribution"):
        row = rows.get((kind, k))
        if row is None:
            continue
        said = [
            f"{MEASURE_NAMES[name]} {number(clean[name], 3)} → {with_interval(row, name)}, less "
            f"random {with_interval(row, f'{name}_against_random')}"
            for name in _ABLATED
        ]
        label = HEAD_SETS[kind][0].removeprefix("top ")
        felt = row["below_site"]
        below = f" ({felt:g} of them below the probe's site)" if kind == "induction" else ""
        found.append(f"Top {k} {label} ablated{below}: {'; '.join(said)}.")
    return found


def patched(metrics: dict[str, Any]) -> str:
    """How far gradient patching can be believed."""
    rows = {row["target"]: row for row in metrics["patching"]["agreement"]}
    parts = [
        f"{with_interval(rows[target], 'correlation')} for {what}"
        for target, what in (("copy", "the copied token"), ("probe", "the probe"))
    ]
    shares = {(row["target"], row["kind"]): row for row in metrics["patching"]["totals"]}
    heads, mlps = (
        with_interval(shares["copy", kind], "share", percent=True) for kind in ("heads", "MLPs")
    )
    return (
        f"Gradient and exact patching correlate at {' and '.join(parts)} over the largest units of "
        f"{metrics['patching']['n_pairs']} pairs. By gradient, heads bring back {heads} of the "
        f"copied token's lead, MLPs {mlps} (units pass on what others say: no sum of 1)."
    )


def steered(metrics: dict[str, Any]) -> str:
    """Whether adding a direction makes the model take up what the context offers."""
    table = pd.DataFrame(metrics["steering"]["rows"])
    dose, parts = table["dose"].max(), []
    for name in table["direction"].unique():
        row = table[(table["direction"] == name) & (table["dose"] == dose)].iloc[0].to_dict()
        change = with_interval(row, "taken_up_change", percent=True)
        loss = with_interval(row, "loss_elsewhere_change")
        parts.append(f"{name} {change} (loss elsewhere {loss})")
    return (
        f"At dose {dose:g} the share of offered tokens taken up that the clean text has not "
        f"changes by: {', '.join(parts)}."
    )


def surface(metrics: dict[str, Any]) -> str:
    """Intent or surface."""
    rows = metrics["matched_study"]["scores"]
    first = rows[0]
    others = ", ".join(
        f"{row['score']} {with_interval(row, 'auroc_within')} (the probe's lead "
        f"{with_interval(row, 'first_gain')})"
        for row in rows[1:]
    )
    kinds = ", ".join(
        f"{names} {with_interval(row, 'share', percent=True)}"
        for row in metrics["matched_study"]["kinds"]
        if (names := {"head": "heads", "mlp": "MLPs"}.get(row["kind"]))
    )
    return (
        f"Where match length, token class and repetitions are equal ({first['n_positions']} "
        f"positions in {first['n_strata']} strata), AUROC for going on to copy: probe "
        f"{with_interval(first, 'auroc_within')}, {others}. Of the probe's difference there: "
        f"{kinds}."
    )


def with_interval(row: dict[str, Any], name: str, *, percent: bool = False) -> str:
    """An estimate and its interval as words; a dash where it does not exist."""
    values = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
    if any(value is None or value != value for value in values):
        return "–"
    value, low, high = (f"{v:.1%}" if percent else f"{v:.3f}" for v in values)
    return f"{value} ({low} to {high})"


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
    metrics = run.metrics()
    said = headlines(metrics)
    drawn = {name: recipe.of(run) for name, recipe in CAUSAL.items()}
    write_figure_files(run.path / "figures", drawn)
    body = _head(metrics, said) + _what_ran(run, metrics)
    for title, words, names in SECTIONS:
        told = words(metrics)
        texts = [told] if isinstance(told, str) else told
        shown = "".join(embedded(name, drawn[name]) for name in names)
        body += section(title, *map(paragraph, texts), shown)
    tables = _tables(metrics)
    for title, table in tables.items():
        body += section(f"Table: {title}", scrolled(table))
    path = run.path / "report.html"
    title = f"What makes {metrics['model']} copy?"
    write_text(path, page(title, body, script=plotly_inside()))
    lines = "\n".join(f"- {line}" for line in said)
    told = "\n".join(f"## {name}\n\n{to_markdown(table)}\n" for name, table in tables.items())
    write_text(run.path / "report.md", f"# {title}\n\n{lines}\n\n{told}")
    return path


def _tables(metrics: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The study's tables as words, each estimate with its interval."""
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
    rows: list[dict[str, Any]], names: tuple[str, ...], estimates: tuple[str, ...]
) -> pd.DataFrame:
    words = [
        {name.replace("_", " "): str(row[name]) for name in names}
        | {name.replace("_", " "): with_interval(row, name) for name in estimates}
        for row in rows
    ]
    return pd.DataFrame(words)


def ablation_table(metrics: dict[str, Any]) -> pd.DataFrame:
    """Every ablation as words: each measure with its interval."""
    rows = []
    for row in metrics["ablation"]:
        words = {"heads": _set_name(row["heads"]), "k": str(row["k"])}
        words["below the site"] = f"{row['below_site']:g}"
        words["draws"] = str(row["draws"])
        for name in (
            *("probe_auroc", "probe_auroc_given_match", "copy_probability"),
            *("accepted_copy_length", "loss_elsewhere"),
        ):
            words[draw.MEASURE_NAMES[name]] = with_interval(row, name)
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
                    number(gone["accepted_copy_length"]),
                    f"{number(clean['accepted_copy_length'])} with all heads",
                ),
                (
                    "probe AUROC, matched positions",
                    number(within["auroc_within"], 3),
                    "–".join(number(within[f"auroc_within_{end}"], 3) for end in ("low", "high")),
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


def _set_name(kind: str) -> str:
    return draw.HEAD_SETS[kind][0] if kind in draw.HEAD_SETS else "none"
