"""`switchsd bench`: every policy live on the same prompts, beside transformers' own decoding.

`switchsd draft eval` is the same of the policies that show what drafts are worth, greedily.

runs/<name>/asked/             the prompts as they were asked
runs/<name>/greedy/<number>/   one prompt's tables; with all three it is finished
runs/<name>/sampled/<t>/…      the same at each temperature above 0
runs/<name>/runs.parquet …     all of them together, once all are there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ...data.benchmarks import load_benchmark, sets_for
from ...decoding.drafters.draft_card import CARD
from ...decoding.drafts import Drafts
from ...decoding.neural import TREE
from ...decoding.step.tree_shape import TreeShape
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.asked import asked_prompts
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run
from .measures import (
    ALL,
    accepted_per_position,
    before_loops,
    bench_rows,
    over_eagle3,
    per_prompt,
    race_rows,
)
from .methods import SPS, Methods, bench_methods, fit_digests
from .race import Race, divergences, race_prompts, with_texts
from .transformers import TRANSFORMERS, references

COMMAND = "bench"
SETS = sets_for("race")
SAMPLED = ("vanilla", "eagle3", "copyspec", "switchsd")
"""Policies of the temperature part."""

DRAFTED = ("vanilla", "eagle3", "eagle3-tree", "sps", "copyspec", "switchsd")
"""Policies of `switchsd draft eval`: the last two copy beside the head."""


@dataclass(frozen=True)
class BenchPlan:
    """What is raced.

    Attributes:
        sets: benchmarks, or JSONL files.
        prompts: of each set.
        new_tokens: budget of each.
        temperatures: of the temperature part; at 0 it shows what the greedy race has measured.
        sampled_prompts: prompts of that part, the first of each set alike.

    Raises:
        SwitchSDError: a number below 1, no sets, or a temperature that is none.
    """

    sets: tuple[str, ...] = SETS
    prompts: int = 20
    new_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.5, 1.0)
    sampled_prompts: int = 12

    def __post_init__(self) -> None:
        if not self.sets:
            raise SwitchSDError(f"no prompt sets: name some, as in {', '.join(SETS)}")
        if min(self.prompts, self.new_tokens, self.sampled_prompts) < 1:
            raise SwitchSDError(f"{self}: prompts and tokens have to be at least 1")
        if not all(0 <= t < float("inf") for t in self.temperatures):
            raise SwitchSDError(f"temperatures {list(self.temperatures)}: each is at least 0")

    def sampled(self, prompts: pd.DataFrame) -> pd.DataFrame:
        """Of these prompts those of the temperature part."""
        each = -(-self.sampled_prompts // len(self.sets))
        return prompts.groupby("set", sort=False).head(each).head(self.sampled_prompts)


def run_bench(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    methods: Methods,
    path: Path,
    plan: BenchPlan,
    *,
    data_dir: Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Race everything; an unfinished run of the same plan goes on with the next prompt.

    Writes the tables runs, steps, tokens, methods, prompts (speed of each), rows (`race_rows`, with
    draft and depth), temperatures (`bench_rows` with a temperature), divergences, and into
    `metrics.json` rows, temperatures, divergences, switchsd_over_eagle3 (and without loops),
    left_out, model, dtype, threads, exact. The run stays open: `bench_outcome` closes it.

    Raises:
        SwitchSDError: no such benchmark, an empty one, a prompt beyond the context.
    """
    outside = references(drafts.model)
    config = {
        **asdict(plan), "probe": None if probe is None else probe.digest,
        "fits": fit_digests(methods),
    }  # fmt: skip
    run, prompts = _start(path, COMMAND, lens, drafts, methods, plan, config, data_dir)
    race = race_prompts(
        path / "greedy", lens, prompts, methods.policies, outside, max_new_tokens=plan.new_tokens,
        progress=progress,
    )  # fmt: skip
    some = plan.sampled(prompts)
    wanted = _sampled_labels(methods)
    sampled = {label: policy for label, policy in methods.policies.items() if label in wanted}
    hot = {
        t: race_prompts(
            path / "sampled" / f"{t:g}", lens, some, sampled, max_new_tokens=plan.new_tokens,
            temperature=t, progress=progress,
        )
        for t in plan.temperatures
        if t > 0
    }  # fmt: skip
    _write(run, lens, methods, list(outside), race, divergences(lens, race.tokens, TRANSFORMERS))
    _write_temperatures(run, plan, race, hot, some, list(sampled))
    return run


def bench_outcome(run: Run) -> None:
    """Close a run whose tables are all written.

    Raises:
        SwitchSDError: in float32 a text is not transformers' own; the run stays closed and whole.
    """
    run.finish()
    metrics = run.metrics()
    wrong = metrics["divergences"]
    if metrics["dtype"] == "float32" and wrong:
        first = wrong[0]
        raise SwitchSDError(
            f"not token-exact in float32: {len(wrong)} texts leave transformers' own, the first "
            f"{first['policy']} on {first['prompt_id']} after {first['at']} tokens, where the two "
            f"largest logits lie {first['margin']:.2g} apart (divergences in {run.path})"
        )


def _sampled_labels(methods: Methods) -> Sequence[str]:
    """The four of the temperature part; the draft model stands in where there is no head."""
    return [
        label if label in methods.raced else "sps" if label == "eagle3" else label + SPS
        for label in SAMPLED
    ]


def run_draft_eval(
    lens: Lens,
    drafts: Drafts,
    probe: CopyProbe | None,
    path: Path,
    plan: BenchPlan,
    tree: TreeShape = TREE,
    *,
    data_dir: Path | None = None,
    progress: Progress = silent,
) -> Run:
    """Race what drafts with vanilla; an unfinished run of the same drafts goes on.

    Writes the tables `runs`, `steps`, `tokens`, `prompts` (speed of each), `divergences`,
    `accepted_per_position` and `drafts` (`race_rows`, with gamma), and into `metrics.json` the keys
    rows, accepted_per_position, switchsd_over_eagle3, divergences, artefact_mib, learning_curve
    (and learning_curve_from), dtype and threads.

    Args:
        lens: the target.
        drafts: what is measured; policies without their draft are left out.
        probe: switchsd is left out without one.
        path: run folder.
        plan: its temperatures are not looked at.
        tree: of eagle3-tree.
        data_dir: where the benchmark files are.
        progress: told the number of prompts of each set.

    Raises:
        SwitchSDError: neither a head nor a draft model, or as `run_bench`.
    """
    if drafts.head is None and drafts.model is None:
        raise SwitchSDError(
            f"no draft to measure for {lens.name}: train one with `switchsd draft train` and name "
            "its folder with --eagle3 or --sps"
        )
    methods = drafted_methods(lens, drafts, probe, tree)
    config = {
        "prompts": plan.prompts, "new_tokens": plan.new_tokens, "sets": plan.sets,
        "tree": asdict(tree),
    }  # fmt: skip
    run, prompts = _start(path, "draft eval", lens, drafts, methods, plan, config, data_dir)
    race = race_prompts(
        path / "greedy", lens, prompts, methods.policies, max_new_tokens=plan.new_tokens,
        progress=progress,
    )  # fmt: skip
    rows = race_rows(race, list(methods.raced))
    rows = rows[rows["set"] != ALL].reset_index(drop=True)
    rows.insert(2, "gamma", [methods.raced[label].depth for label in rows["policy"]])
    shares, speeds = accepted_per_position(race.steps), per_prompt(race.steps)
    diverged = divergences(lens, race.tokens)
    for name, table in (
        ("runs", race.runs), ("steps", race.steps), ("tokens", with_texts(race.tokens, lens)),
        ("prompts", speeds), ("drafts", rows.assign(dtype=lens.dtype)),
        ("accepted_per_position", shares), ("divergences", diverged),
    ):  # fmt: skip
        run.write_table(name, table)
    run.update_metrics(
        dtype=lens.dtype,
        threads=torch.get_num_threads(),
        rows=rows.assign(dtype=lens.dtype).to_dict("records"),
        accepted_per_position=shares.to_dict("records"),
        switchsd_over_eagle3=over_eagle3(speeds).to_dict("records"),
        divergences=diverged.to_dict("records"),
        artefact_mib=dict(drafts.sizes),
        learning_curve=list(drafts.learning_curve),
        learning_curve_from=f"{CARD} of the head" if drafts.learning_curve else None,
    )
    run.finish()
    return run


def drafted_methods(
    lens: Lens, drafts: Drafts, probe: CopyProbe | None, tree: TreeShape = TREE
) -> Methods:
    """Of `DRAFTED` vanilla and what can be built with a draft."""
    found = bench_methods(lens, drafts, probe, among=DRAFTED, tree=tree)
    kept = {
        label: method
        for label, method in found.raced.items()
        if label == "vanilla" or method.draft != "none"
    }
    return Methods(kept, found.left_out)


def _start(
    path: Path,
    command: str,
    lens: Lens,
    drafts: Drafts,
    methods: Methods,
    plan: BenchPlan,
    config: dict[str, Any],
    data_dir: Path | None,
) -> tuple[Run, pd.DataFrame]:
    """The run folder, and the prompts as they were asked."""
    for name in plan.sets:  # named before anything is computed
        load_benchmark(name, limit=plan.prompts, data_dir=data_dir)
    settings = {
        **config, "model": lens.fingerprint, "dtype": lens.dtype,
        "threads": torch.get_num_threads(), "drafts": dict(drafts.files),
        "policies": list(methods.raced),
    }  # fmt: skip
    run = Run.start(path, command=command, config=settings)
    run.describe(
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        attention=lens.attention,
    )
    asked = path / "asked"
    return run, asked_prompts(asked, lens, plan.sets, limit=plan.prompts, data_dir=data_dir)


def _write(
    run: Run, lens: Lens, methods: Methods, outside: list[str], race: Race, diverged: pd.DataFrame
) -> None:
    raced = methods.raced.values()
    made = pd.DataFrame(
        [(method.label, method.draft, method.depth) for method in raced]
        + [(label, "outside", None) for label in outside],
        columns=["policy", "draft", "depth"],
    ).astype({"depth": "Int64"})
    rows = race_rows(race, list(made["policy"])).merge(made, on="policy", how="left")
    speeds = per_prompt(race.steps)
    for name, table in (
        ("runs", race.runs), ("steps", race.steps), ("tokens", race.tokens), ("methods", made),
        ("rows", rows), ("divergences", diverged), ("prompts", speeds),
    ):  # fmt: skip
        run.write_table(name, table)
    run.update_metrics(
        model=lens.name,
        dtype=lens.dtype,
        threads=torch.get_num_threads(),
        rows=rows.to_dict("records"),
        divergences=diverged.to_dict("records"),
        exact=not len(diverged),
        left_out=methods.left_out,
        switchsd_over_eagle3=over_eagle3(speeds).to_dict("records"),
        switchsd_over_eagle3_without_loops=over_eagle3(
            per_prompt(before_loops(race.steps))
        ).to_dict("records"),
    )


def _write_temperatures(
    run: Run,
    plan: BenchPlan,
    race: Race,
    hot: dict[float, Race],
    some: pd.DataFrame,
    labels: list[str],
) -> None:
    races = {t: each.steps for t, each in hot.items()}
    if 0.0 in plan.temperatures:
        steps = race.steps
        same = steps["prompt_id"].isin(some["prompt_id"]) & steps["policy"].isin(labels)
        races[0.0] = steps[same]
    found = []
    for temperature, steps in sorted(races.items()):
        rows = bench_rows(steps, labels)
        found.append(rows[rows["set"] == rows["set"].iloc[0]].assign(temperature=temperature))
    table = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    run.write_table("temperatures", table)
    run.update_metrics(temperatures=table.to_dict("records"))
