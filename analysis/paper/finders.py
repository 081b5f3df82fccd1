"""Where the paper's Figures 2–6 come from: what a run folder has of each, drawn.

A finder takes a run and gives `Found`, or None where that run holds nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...errors import SwitchSDError
from ...runs import Run
from ..figures.acceptance import accepted_by_probe, accepted_by_probe_state, accidental_table
from ..figures.probing import scored_probe, set_name
from ..figures.sites import layer_sweep
from ..figures.thresholds import confusion_by_corpus, roc_by_set, tau_curves
from ..pages.figure_files import Drawn
from ..replay.acceptance import accepted_by_state, both_paths, by_probe_state
from ..replay.repetitions import repetition_examples
from ..replay.settings import Setting
from ..traces.trace import CounterfactualTrace

NO_INTERVALS = "no intervals"
_DEMO_SET = "copy_diversity"  # a demo tests on one set and keeps the scores with its probe
_LONGEST = 20  # tokens of a copy in the paper's Figure 3


@dataclass(frozen=True)
class Found(Drawn):
    """A figure as one run has it; a finder's caption says n and intervals, no more.

    Attributes:
        height: in print, in CSS pixels, where this source needs another than the rest.
        run: whose it is, once it is collected.
    """

    height: int | None = None
    run: Path = Path()


Finder = Callable[[Run], Found | None]


def setting_of(run: Run) -> str:
    """Model and dtype of a run, as a caption states them.

    Raises:
        SwitchSDError: a run that says neither.
    """
    about = run.manifest()
    model, dtype = about.get("model"), about.get("dtype")
    name = model.get("name") if isinstance(model, dict) else None
    if not name or not dtype:
        raise SwitchSDError(f"{run.path} does not say which model and dtype it is of; run it again")
    return f"{name}, {dtype}"


def accidental(run: Run, tokenizer: Callable[[str], Any]) -> Found | None:
    """Figure 2 from a trace.

    Args:
        run: any.
        tokenizer: model name → its tokenizer.
    """
    trace = _trace(run)
    if trace is None:
        return None
    table = repetition_examples(trace, tokenizer(str(run.manifest()["model"]["name"])))
    if table.empty:
        return None
    says = (
        f"n = {len(table)} examples, the longest matches of {len(trace.prompts)} prompts outside "
        f"loops, at most one a prompt; examples, so {NO_INTERVALS}"
    )
    return Found(accidental_table(table), table, says)


def acceptance_of_trace(run: Run) -> Found | None:
    """Figure 3 from a trace: both paths at every position, by the probe's state."""
    trace = _trace(run)
    if trace is None or trace.tau is None:
        return None
    paths = both_paths(trace, Setting("switchsd", D=_LONGEST))
    whole = paths[paths["whole"] & (paths["state"] != "none")]
    yields = pd.DataFrame(
        {
            "prompt_id": whole["prompt_id"],
            "accepted": whole["copy"],
            "probe_on": whole["state"] == "on",
        }
    )
    shares = accepted_by_state(paths, _LONGEST)
    says = f"copy path, every position with a candidate: {_yields(yields)}"
    return Found(accepted_by_probe(shares), shares, says, height=420)


def acceptance_of_decoding(run: Run) -> Found | None:
    """Figure 3 from a run that decoded, as the demo: the copy path at every position."""
    if not run.has_table("copy_yield"):
        return None
    table = run.table("copy_yield")
    if table.empty:
        return None
    longest = max(int(table["accepted"].max()), 1)
    says = f"copy path, every position, 0 without a candidate: {_yields(table, longest)}"
    return Found(accepted_by_probe_state(table, longest), table, says)


def corpora(run: Run) -> Found | None:
    """Figure 4 from the probing study."""
    if not run.has_table("corpora"):
        return None
    table = run.table("corpora")
    rows = table[table["loops"] == "with"]
    if rows.empty:
        return None
    each = "; ".join(
        f"{set_name(row['corpus']).removesuffix(' (test)')} F1 {row['f1']:.3f} "
        f"({row['f1_low']:.3f} to {row['f1_high']:.3f})"
        for row in rows.to_dict("records")
    )
    first = rows.iloc[0]
    says = (
        f"n = {first['n_tokens']:,} tokens of {first['n_prompts']} MT-Bench prompts; {each}; "
        "95 % intervals over prompts"
    )
    return Found(confusion_by_corpus(table), table, says)


def layers(run: Run) -> Found | None:
    """Figure 5 from the probing study or the demo."""
    if not run.has_table("sites"):
        return None
    probe = scored_probe(run.metrics())
    if "n_test_tokens" in probe:
        n = f"{probe['n_test_tokens']:,} test tokens"
    else:
        prompts = run.manifest().get("config", {}).get("sweep_prompts")
        n = f"test tokens of {prompts} prompts split 60/20/20"
    table = run.table("sites")
    chosen = probe.get("site")
    says = f"n = {len(table)} sites, {n}; {NO_INTERVALS}: one fit a site"
    if chosen:
        says = f"starred: {chosen}; {says}"
    drawn = layer_sweep(table, chosen=chosen)
    drawn.data[-1].name = "chosen" if chosen else "best"  # the caption says which
    return Found(drawn, table, says)


def thresholds(run: Run) -> Found | None:
    """Figure 6, left, from the probing study or the demo."""
    tested = _tested(run)
    tau = scored_probe(run.metrics()).get("tau")
    if tested is None or tau is None:
        return None
    name = _widest(tested)
    if run.has_table("tau_sweep"):
        sweep = run.table("tau_sweep")
    else:
        sweep = _tau_table(tested).assign(set=name)
    rows = tested[tested["set"] == name]
    says = f"{set_name(name)}, {_tokens(rows)}; {NO_INTERVALS}"
    return Found(tau_curves(sweep, tau=tau, of=name), sweep, says)


def roc(run: Run) -> Found | None:
    """Figure 6, right, from the probing study or the demo."""
    tested = _tested(run)
    if tested is None:
        return None
    areas = {str(name): _area(run, str(name)) for name in tested["set"].unique()}
    each = "; ".join(
        f"{set_name(str(name))} {_tokens(rows)}{areas[str(name)]}"
        for name, rows in tested.groupby("set", sort=False)
    )
    intervals = "95 % intervals over prompts" if any(areas.values()) else NO_INTERVALS
    drawn = roc_by_set(tested)  # below the curves there is room for the legend
    place = {"orientation": "v", "x": 1, "xanchor": "right", "y": 0.02, "yanchor": "bottom"}
    return Found(drawn.update_layout(legend=place), tested, f"{each}; {intervals}")


def _trace(run: Run) -> CounterfactualTrace | None:
    about = run.manifest()
    if (about.get("command"), about.get("state")) != ("trace", "complete"):
        return None
    return CounterfactualTrace.read(run.path)


def _yields(table: pd.DataFrame, longest: int = _LONGEST) -> str:
    summary = by_probe_state(table, longest=longest)
    rows = summary[summary["set"] == "all"].set_index("probe")
    parts = []
    for state, row in rows.iterrows():
        said = f"probe {state} n = {int(row['n']):,}"
        said += f", mean accepted {row['mean']:.2f}" if row["n"] else ""
        if pd.notna(row["mean_low"]):
            said += f" ({row['mean_low']:.2f} to {row['mean_high']:.2f})"
        parts.append(said)
    prompts = table["prompt_id"].nunique()
    known = f"{prompts} prompts, 95 % intervals over them"
    return f"{'; '.join(parts)}; {known if prompts > 1 else f'1 prompt, {NO_INTERVALS}'}"


def _tested(run: Run) -> pd.DataFrame | None:
    if not run.has_table("probe_test"):
        return None
    table = run.table("probe_test")
    return table if "set" in table else table.assign(set=_DEMO_SET)


def _widest(tested: pd.DataFrame) -> str:
    names = list(dict.fromkeys(tested["set"]))
    return "all" if "all" in names else str(names[0])


def _tokens(rows: pd.DataFrame) -> str:
    return f"n = {len(rows):,} tokens of {rows['prompt_id'].nunique()} prompts"


def _area(run: Run, name: str) -> str:
    metrics = run.metrics()
    found = [row for row in metrics.get("evaluation") or [] if row["set"] == name]
    own = metrics.get("probe") or {} if name == _DEMO_SET else {}
    row = found[0] if found else own
    if not {"auroc", "auroc_low", "auroc_high"} <= set(row):
        return ""
    return f", AUROC {row['auroc']:.3f} ({row['auroc_low']:.3f} to {row['auroc_high']:.3f})"


def _tau_table(tested: pd.DataFrame) -> pd.DataFrame:
    from ...probing.lab.evaluation import Scored, tau_table

    return tau_table(Scored(tested, tested["label"].to_numpy(bool), tested["score"].to_numpy()))
