"""The demo's report: one page that holds everything it shows and asks the network for nothing.

Reads a run folder's tables and metrics, runs no model. Beside the page, each figure is written on
its own to `figures/<name>.html` (they share `figures/plotly.min.js`), its data to
`figures/<name>.csv`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...errors import SwitchSDError
from ...runs import Run, write_text
from ..figures.acceptance import accepted_by_probe_state, accepted_histogram
from ..figures.curves import accepted_by_path, roc_curve, yield_by_probe_state
from ..figures.sites import layer_sweep, site_heatmap
from ..figures.speeds import policy_speedups
from ..figures.thresholds import roc
from ..figures.words import policy_name
from .figure_files import Drawn, embedded, plotly_inside, write_figure_files
from .page import cards, facts, folded, page, paragraph, section
from .tables import (
    decoding_sentence,
    decoding_table,
    main_policy,
    probe_sentence,
    scrolled,
    sites_table,
    to_html,
    yield_table,
)
from .token_view import legend_html, tokens_html


def write_report(run: Run) -> Path:
    """Write `report.html` and `figures/` into the run's folder and return the report's path.

    Needs the tables sites, probe_test, decoding, steps, tokens and copy_yield and, in the metrics,
    `model`, `dtype` and `probe`. Raises `SwitchSDError` for what is missing or cannot be written.
    """
    sources = read_sources(run)
    drawn = draw_figures(sources)
    write_figure_files(run.path / "figures", drawn)
    body = "".join(
        [
            _head(sources),
            _what_ran(sources),
            _probe_section(sources, drawn),
            _acceptance_section(sources, drawn),
            _decoding_section(sources, drawn),
            _tokens_section(sources),
        ]
    )
    path = run.path / "report.html"
    title = f"SwitchSD Lab: {sources.metrics['model']}"
    write_text(path, page(title, body, script=plotly_inside()))
    return path


def typical_prompt(tokens: pd.DataFrame) -> str:
    """Of one policy's prompts the one whose share of copied tokens is the middle one.

    Neither the best case nor the worst: what a report may show as a sample.
    """
    written = tokens[tokens["path"] != "prompt"]
    if written.empty:
        raise SwitchSDError("the tokens table holds no decoded tokens; make the run again")
    share = written["path"].eq("copy").groupby(written["prompt_id"]).mean()
    ranked = share.sort_values(kind="stable").index.to_list()
    return str(ranked[(len(ranked) - 1) // 2])


def _head(sources: Sources) -> str:
    probe, decoding, policy = sources.probe, sources.decoding, sources.policy
    speedup = decoding.set_index("policy")["speedup"].to_dict()[policy]
    exact = decoding["token_exact"].astype(bool)
    interval = f"{probe['auroc_low']:.3f}–{probe['auroc_high']:.3f}"
    return (
        f"<h1>When does {html.escape(str(sources.metrics['model']))} copy?</h1>"
        + paragraph(
            "What inside the model says that it is about to copy from its context, "
            "and how much decoding time knowing it saves.",
            "lead",
        )
        + cards(
            [
                ("probe AUROC", f"{probe['auroc']:.3f}", f"{interval}; chance 0.5"),
                ("probe F1", f"{probe['f1']:.3f}", f"always copy: {probe['f1_always_copy']:.3f}"),
                (f"{policy_name(policy)} speed", f"{speedup:.2f}×", "vanilla: 1.00×"),
                ("token-exact", f"{int(exact.sum())} of {len(exact)}", "policies"),
            ]
        )
    )


def _what_ran(sources: Sources) -> str:
    metrics, manifest, test = sources.metrics, sources.manifest, sources.probe_test
    versions = manifest.get("versions") or {}
    rows: list[tuple[str, object]] = [
        ("model", metrics["model"]),
        ("dtype", metrics["dtype"]),
        ("cores", manifest.get("cores", "–")),
        ("probe test", f"{len(test):,} tokens of {test['prompt_id'].nunique()} prompts"),
        ("decoding", f"{sources.n_prompts} prompts, {len(sources.decoding)} policies"),
        ("started", manifest.get("started", "–")),
        ("versions", ", ".join(f"{name} {v}" for name, v in versions.items() if v)),
        ("python", manifest.get("python", "–")),
    ]
    if metrics.get("seconds") is not None:
        rows.append(("took", f"{float(metrics['seconds']):.0f} s"))
    settings = list((manifest.get("config") or {}).items())
    return section("What ran", facts(rows), folded("Settings", facts(settings)) if settings else "")


def _probe_section(sources: Sources, drawn: Mapping[str, Drawn]) -> str:
    probe = sources.probe
    return section(
        "The probe",
        facts(
            [
                ("chosen site", probe["site"]),
                ("threshold τ", f"{probe['tau']:.3f}"),
                ("label offset", probe["label_offset"]),
            ]
        ),
        paragraph(probe_sentence(probe)),
        paragraph(
            "Site and τ were chosen on validation prompts; the figures below are on test prompts, "
            "so another site may happen to lie higher there.",
            "note",
        ),
        embedded("layer-sweep", drawn["layer-sweep"]),
        embedded("site-heatmap", drawn["site-heatmap"]),
        folded("AUROC of every site", to_html(sites_table(sources.sites, chosen=probe["site"]))),
        embedded("roc", drawn["roc"]),
    )


def _acceptance_section(sources: Sources, drawn: Mapping[str, Drawn]) -> str:
    return section(
        "What the copy path yields, with the probe on and off",
        paragraph(
            "Counted only where the last tokens occurred before, so where there is something to "
            "copy. Small models fall into loops, which any copier predicts: the table gives the "
            "figures outside loops too."
        ),
        embedded("accepted-by-probe-state", drawn["accepted-by-probe-state"]),
        scrolled(yield_table(sources.with_match)),
    )


def _decoding_section(sources: Sources, drawn: Mapping[str, Drawn]) -> str:
    return section(
        "Decoding",
        paragraph(decoding_sentence(sources.decoding)),
        scrolled(decoding_table(sources.decoding)),
        paragraph(_drafting_note(sources), "note"),
        embedded("policy-speedups", drawn["policy-speedups"]),
        embedded("accepted-by-path", drawn["accepted-by-path"]),
    )


def _drafting_note(sources: Sources) -> str:
    """What the table's accepted lengths count, and what drafts where nothing is copied."""
    note = "Mean accepted is of copied drafts and leaves out the target's own bonus token."
    neural = sources.steps.loc[sources.steps["path"] == "neural", "policy"]
    names = [policy_name(policy) for policy in sources.decoding["policy"] if policy in set(neural)]
    if not names:
        return f"{note} Where nothing is copied, every policy decodes one token."
    return f"{note} Where nothing is copied, a neural draft drafts for {', '.join(names)}."


def _tokens_section(sources: Sources) -> str:
    tokens, steps = (
        table[table["policy"] == sources.policy] for table in (sources.tokens, sources.steps)
    )
    prompt_id = typical_prompt(tokens)
    shown = (table[table["prompt_id"] == prompt_id] for table in (tokens, steps))
    return section(
        "One prompt, token by token",
        paragraph(
            f"{policy_name(sources.policy)} on {prompt_id}: of all prompts the one whose share of "
            "copied tokens is the middle one. The viewer shows the others.",
        ),
        legend_html(sources.probe["tau"]),
        tokens_html(*shown),
    )


@dataclass(frozen=True)
class Sources:
    """What a report is made of, read once."""

    metrics: dict[str, Any]
    manifest: dict[str, Any]
    probe: dict[str, Any]
    sites: pd.DataFrame
    probe_test: pd.DataFrame
    decoding: pd.DataFrame
    steps: pd.DataFrame
    tokens: pd.DataFrame
    with_match: pd.DataFrame
    """The rows of copy_yield where the context offers a candidate."""
    policy: str
    """The policy the report is about."""

    @property
    def where(self) -> str:
        """Model and dtype, for captions."""
        return f"{self.metrics['model']}, {self.metrics['dtype']}"

    @property
    def n_prompts(self) -> int:
        """Prompts decoded."""
        return int(self.decoding["n_prompts"].max())


def read_sources(run: Run) -> Sources:
    """Read what a report needs; what is missing or not a number is a `SwitchSDError`."""
    metrics = run.metrics()
    missing = [key for key in ("model", "dtype", "probe") if key not in metrics]
    if missing:
        path = run.path / "metrics.json"
        raise SwitchSDError(f"{path} lacks {missing[0]!r}; finish the run first")
    for key in ("tau", "auroc", "auroc_low", "auroc_high", "f1", "f1_always_copy", "n_test_tokens"):
        if not isinstance(metrics["probe"].get(key), (int, float)):
            raise SwitchSDError(f"the probe has no {key} in {run.path / 'metrics.json'}")
    decoding, copy_yield = run.table("decoding"), run.table("copy_yield")
    return Sources(
        metrics=metrics,
        manifest=run.manifest(),
        probe=metrics["probe"],
        sites=run.table("sites"),
        probe_test=run.table("probe_test"),
        decoding=decoding,
        steps=run.table("steps"),
        tokens=run.table("tokens"),
        with_match=copy_yield[copy_yield["match_length"] > 0],
        policy=main_policy(decoding),
    )


def draw_figures(sources: Sources) -> dict[str, Drawn]:
    """Every figure of the report by its file name, in the report's order."""
    sites, test, with_match = sources.sites, sources.probe_test, sources.with_match
    steps = sources.steps[sources.steps["policy"] == sources.policy]
    chosen, prompts, where = sources.probe["site"], sources.n_prompts, sources.where
    return {
        "layer-sweep": Drawn(layer_sweep(sites, chosen=chosen), sites,
            f"AUROC of a linear probe at each layer and stream, on test tokens. {where}."),
        "site-heatmap": Drawn(site_heatmap(sites, chosen=chosen), sites,
            f"The same figures as a map; the chosen site is boxed. {where}."),
        "roc": Drawn(roc(test, sources.probe["tau"]), roc_curve(test),
            f"Every threshold's rates on {len(test):,} test tokens of "
            f"{test['prompt_id'].nunique()} prompts; the diamond is τ. {where}."),
        "accepted-by-probe-state": Drawn(
            accepted_by_probe_state(with_match), yield_by_probe_state(with_match),
            "How many tokens the copy path would have had accepted, by what the probe says there, "
            f"at each of {len(with_match):,} positions where the context offers a candidate. "
            f"{where}."),
        "policy-speedups": Drawn(policy_speedups(sources.decoding), sources.decoding,
            f"Tokens per second over vanilla's, {prompts} prompts. {where}."),
        "accepted-by-path": Drawn(accepted_histogram(steps), accepted_by_path(steps),
            f"Accepted draft tokens a step, {policy_name(sources.policy)}, {prompts} prompts. "
            f"{where}."),
    }  # fmt: skip
