"""A benchmark's outcome: tables into the run folder, `report.md` and `report.html`.

Reads the run's own tables and, where there is one, a counterfactual trace; runs no model.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ...errors import SwitchSDError
from ...runs import Run, write_text
from ..cost.profile import LatencyProfile
from ..figures.speeds import policy_speedups
from ..figures.words import number, percent
from ..pages.figure_files import figure_div, plotly_inside
from ..pages.page import page, paragraph, section
from ..pages.tables import scrolled, to_markdown
from ..replay.repetitions import repetition_examples, repetition_rates
from ..traces.trace import CounterfactualTrace
from .replayed import best_gammas, largest_errors, raced_shares, replayed_rows, replayed_speeds
from .tables import (
    divergence_table,
    gamma_table,
    table1,
    table2,
    table3,
    temperature_table,
    throughput_table,
    time_table,
)

Part = tuple[str, str, list[pd.DataFrame]]
"""Title, words, tables."""


def write_outcome(
    run: Run,
    *,
    trace: CounterfactualTrace | None = None,
    profile: LatencyProfile | None = None,
    tokenizer: Any = None,
) -> None:
    """Tables 1–3, examples and both reports from a benchmark whose races are finished.

    Writes the tables table1, table2, table3, those of `raced_shares`, replayed_speeds (the live
    speedups beside those that replay predicts), repetitions and repetition_examples (all but the
    first two of a trace) as Parquet, the tables, shares and `replay_speedup_error_bench` also into
    `metrics.json`, and all into the reports.

    Args:
        run: with the tables of `run_bench`.
        trace: for sets that were not run live, Table 3 and the examples.
        profile: what steps cost; the trace's sets and Table 3 need it.
        tokenizer: of the model; without it there are no examples.

    Raises:
        SwitchSDError: a run without these tables, a trace of another model, none where there was
            one before.
    """
    metrics, about = run.metrics(), run.manifest()
    fingerprint = (about.get("model") or {}).get("fingerprint")
    if trace is not None and trace.fingerprint != fingerprint:
        raise SwitchSDError(
            f"the trace is of another model ({trace.fingerprint[:8]}) than {run.path} "
            f"({str(fingerprint)[:8]}): trace this one"
        )
    if metrics.get("table3") and (trace is None or profile is None):
        raise SwitchSDError(
            f"the tables of {run.path} hold replayed sets: give --trace and --profile as before"
        )
    rows, methods = run.table("rows").assign(source="live"), run.table("methods")
    gammas, speeds, shares = pd.DataFrame(), pd.DataFrame(), dict[str, pd.DataFrame]()
    if trace is not None and profile is not None:
        more = replayed_rows(trace, methods, profile, but=rows["set"]).assign(source="replay")
        rows = pd.concat([rows, more], ignore_index=True)
        gammas = best_gammas(trace, profile)
        shares = raced_shares(trace, methods, profile)
        if _decoded_alike(trace, about.get("config") or {}):
            prompts = run.table("prompts").drop_duplicates("prompt_id")
            decoded = prompts.set_index("prompt_id")["set"]
            speeds = replayed_speeds(run.table("rows"), decoded, trace, methods, profile)
    model = str(metrics["model"])
    made = {"table1": table1(rows, model), "table2": table2(rows, model)}
    made["table3"] = table3(gammas, model)
    if trace is not None:
        made["repetitions"] = repetition_rates(trace)
        if tokenizer is not None:
            made["repetition_examples"] = repetition_examples(trace, tokenizer)
    made |= shares
    if len(speeds):
        made["replayed_speeds"] = speeds
    for name, table in made.items():
        run.write_table(name, table)
    run.update_metrics(
        **{name: made[name].to_dict("records") for name in ("table1", "table2", "table3")},
        **{
            name: table[["policy", "set", "share"]].to_dict("records")
            for name, table in shares.items()
        },
        replay_speedup_error_bench=largest_errors(speeds) if len(speeds) else None,
    )
    parts = _parts(run, metrics, made)
    title = f"{model}: every policy on the same prompts"
    write_text(run.path / "report.md", _markdown(title, _setup(metrics, about), parts))
    write_text(run.path / "report.html", _html(title, _setup(metrics, about), parts, rows))


def _decoded_alike(trace: CounterfactualTrace, config: dict[str, Any]) -> bool:
    """Whether the trace's decoding is the benchmark's: dtype, budget, probe and drafts."""
    mine = {"probe": config.get("probe"), **(config.get("drafts") or {})}
    same = all(digest == mine.get(kind) for kind, digest in trace.digests.items() if digest)
    setup = (config.get("dtype"), config.get("new_tokens"))
    return same and (trace.dtype, trace.max_new_tokens) == setup


def _setup(metrics: dict[str, Any], about: dict[str, Any]) -> str:
    config = about.get("config") or {}
    return (
        f"{metrics['dtype']}, {metrics['threads']} threads, {about.get('cores')} cores; "
        f"{config.get('prompts')} prompts of each set, at most {config.get('new_tokens')} new "
        "tokens, batch 1, greedy unless a temperature is given. Decode time alone; accepted "
        "lengths without the bonus; intervals are 95 % over resampled prompts."
    )


def _parts(run: Run, metrics: dict[str, Any], made: dict[str, pd.DataFrame]) -> list[Part]:
    rows, diverged = run.table("rows"), run.table("divergences")
    throughput = [
        (
            f"Table {number}: throughput with {draft}",
            "Copy and draft: % of steps / mean accepted. Sets that were not run live are "
            "replayed. The second table leaves loops out.",
            [
                throughput_table(made[f"table{number}"]),
                throughput_table(made[f"table{number}"], without_loops=True),
            ],
        )
        for number, draft in ((1, "EAGLE-3"), (2, "a small draft model (SPS)"))
    ]
    words = "Every text is transformers' own greedy text, token for token."
    if len(diverged):
        words = (
            f"{len(diverged)} texts leave transformers' own; outside float32 rounding does that "
            "where two logits lie close together."
        )
    parts: list[Part] = [*throughput]
    if len(made["table3"]):
        parts.append(
            (
                "Table 3: best lookahead",
                "By replay, chosen on the prompts it is measured on.",
                [gamma_table(made["table3"])],
            )
        )
    for name, draft in (
        ("oracle_share", "EAGLE-3 as a chain"),
        ("oracle_share_tree", "EAGLE-3 as a tree"),
        ("oracle_share_sps", "the draft model"),
    ):
        if name in made:
            parts.append(
                (
                    f"The oracle's share with {draft}",
                    "By replay: a policy's gain over always drafting, as a share of what the "
                    "cheapest choice of paths gains, knowing the text (oracle_path: 1). "
                    "oracle_full chooses the depths too.",
                    [_wide_shares(made[name])],
                )
            )
    if "replayed_speeds" in made:
        parts.append(
            (
                "Predicted and measured",
                "Speed over vanilla, live and as replay predicts it from one trace and the latency "
                "profile; the relative error.",
                [_wide_errors(made["replayed_speeds"])],
            )
        )
    temperatures = run.table("temperatures")
    if len(temperatures):
        table = temperature_table(temperatures)
        parts.append(("Temperature", "Speed over vanilla when sampling.", [table]))
    parts += [
        (
            "Where the time goes",
            "Shares of decode time, all sets; rejected drafts: what steps whose draft was rejected "
            "whole took beyond a plain step. Prefill is apart, the draft's within it.",
            [time_table(rows)],
        ),
        ("Token-exactness", words, [divergence_table(diverged)] if len(diverged) else []),
    ]
    if "repetition_examples" in made:
        parts.append(
            (
                "Accidental repetitions",
                "Where the last three tokens stood before and the text goes another way; a copy "
                "made there is rejected whole.",
                [_rates(made["repetitions"]), made["repetition_examples"].map(_shown)],
            )
        )
    if metrics["left_out"]:
        left = pd.DataFrame(metrics["left_out"].items(), columns=["policy", "why"])
        parts.append(("Left out", "", [left]))
    return parts


def _wide_shares(shares: pd.DataFrame) -> pd.DataFrame:
    return _wide(shares.assign(share=shares["share"].map(_shown)), "share")


def _wide(table: pd.DataFrame, values: str) -> pd.DataFrame:
    """A row a policy and a column a set, both in the order in which they first occur."""
    wide = table.pivot(index="policy", columns="set", values=values)
    order = list(dict.fromkeys(table["policy"])), list(dict.fromkeys(table["set"]))
    return wide.loc[order].reset_index()


def _wide_errors(speeds: pd.DataFrame) -> pd.DataFrame:
    said = [
        f"{row.live:.2f} / {row.replayed:.2f} ({row.error:+.1%})" for row in speeds.itertuples()
    ]
    return _wide(speeds.assign(said=said), "said")


def _rates(rates: pd.DataFrame) -> pd.DataFrame:
    shown = rates.copy()
    for name in ("share", "share_without_loops"):
        shown[name] = rates[name].map(percent)
    return shown.rename(columns=lambda name: str(name).replace("_", " "))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return str(value).replace("\n", "⏎")


def _markdown(title: str, setup: str, parts: list[Part]) -> str:
    lines = [f"# {title}", "", setup]
    for heading, words, tables in parts:
        lines += ["", f"## {heading}", "", words]
        for table in tables:
            lines += ["", to_markdown(table)]
    return "\n".join(lines) + "\n"


def _html(title: str, setup: str, parts: list[Part], rows: pd.DataFrame) -> str:
    first = rows[rows["set"] == rows["set"].iloc[0]]
    figure = figure_div("speeds", policy_speedups(first))
    body = f"<h1>{title}</h1>{paragraph(setup, 'lead')}{figure}"
    for heading, words, tables in parts:
        body += section(heading, paragraph(words), *map(scrolled, tables))
    return page(title, body, script=plotly_inside())
