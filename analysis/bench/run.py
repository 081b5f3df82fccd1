"""`switchsd bench`: every policy live on the same prompts, beside transformers' own decoding.

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

from ...data.benchmarks import load_benchmark
from ...decoding.drafts import Drafts
from ...errors import SwitchSDError
from ...probing.copy_probe import CopyProbe
from ...probing.corpora.asked import asked_prompts
from ...probing.lens import Lens
from ...progress import Progress, silent
from ...runs import Run
from .draft_eval import divergences
from .measures import before_loops, bench_rows, over_eagle3, per_prompt, run_rows, with_loops
from .methods import SPS, Methods, fit_digests
from .race import Race, race_prompts
from .transformers import TRANSFORMERS, references

COMMAND = "bench"
SETS = ("humaneval", "math500", "cnndm")
SAMPLED = ("vanilla", "eagle3", "copyspec", "switchsd")
"""Policies of the temperature part."""


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

    Writes the tables runs, steps, tokens, methods, prompts (speed of each), rows (`bench_rows` and
    `run_rows`, with draft and depth), temperatures (the same with a temperature), divergences, and
    into `metrics.json` rows, temperatures, divergences, switchsd_over_eagle3 (and without loops),
    left_out, model, dtype, threads, exact. The run stays open: `bench_outcome` closes it.

    Raises:
        SwitchSDError: no such benchmark, an empty one, a prompt beyond the context.
    """
    for name in plan.sets:  # named before anything is computed
        load_benchmark(name, limit=plan.prompts, data_dir=data_dir)
    outside = references(drafts.model)
    run = Run.start(path, command=COMMAND, config=_config(lens, drafts, probe, methods, plan))
    run.describe(
        model={"name": lens.name, "fingerprint": lens.fingerprint},
        dtype=lens.dtype,
        attention=lens.attention,
    )
    prompts = asked_prompts(path / "asked", lens, plan.sets, limit=plan.prompts, data_dir=data_dir)
    race = race_prompts(
        path / "greedy", lens, prompts, methods.raced, outside, max_new_tokens=plan.new_tokens,
        progress=progress,
    )  # fmt: skip
    some = plan.sampled(prompts)
    sampled = {
        label: method
        for label, method in methods.raced.items()
        if label in _sampled_labels(methods)
    }
    hot = {
        t: race_prompts(
            path / "sampled" / f"{t:g}", lens, some, sampled, {}, max_new_tokens=plan.new_tokens,
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


def _config(
    lens: Lens, drafts: Drafts, probe: CopyProbe | None, methods: Methods, plan: BenchPlan
) -> dict[str, Any]:
    return {
        **asdict(plan),
        "model": lens.fingerprint,
        "dtype": lens.dtype,
        "threads": torch.get_num_threads(),
        "drafts": dict(drafts.files),
        "probe": None if probe is None else probe.digest,
        "policies": list(methods.raced),
        "fits": fit_digests(methods),
    }


def _write(
    run: Run, lens: Lens, methods: Methods, outside: list[str], race: Race, diverged: pd.DataFrame
) -> None:
    raced = methods.raced.values()
    made = pd.DataFrame(
        [(method.label, method.draft, method.depth) for method in raced]
        + [(label, "outside", None) for label in outside],
        columns=["policy", "draft", "depth"],
    ).astype({"depth": "Int64"})
    steps = with_loops(race.steps, race.tokens)
    rows = bench_rows(steps, list(made["policy"])).merge(made, on="policy", how="left")
    rows = rows.merge(run_rows(race.runs), on=["set", "policy"], how="left")
    for name, table in (
        ("runs", race.runs), ("steps", steps), ("tokens", race.tokens), ("methods", made),
        ("rows", rows), ("divergences", diverged), ("prompts", per_prompt(steps)),
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
        switchsd_over_eagle3=over_eagle3(per_prompt(steps)).to_dict("records"),
        switchsd_over_eagle3_without_loops=over_eagle3(per_prompt(before_loops(steps))).to_dict(
            "records"
        ),
    )


def _write_temperatures(
    run: Run,
    plan: BenchPlan,
    race: Race,
    hot: dict[float, Race],
    some: pd.DataFrame,
    labels: list[str],
) -> None:
    ids = set(some["prompt_id"])
    races = dict(hot)
    if 0.0 in plan.temperatures:
        keep = {
            part: table[table["prompt_id"].isin(ids) & table["policy"].isin(labels)]
            for part, table in (("steps", race.steps), ("tokens", race.tokens), ("runs", race.runs))
        }
        races = {0.0: Race(**keep), **races}
    found = []
    for temperature, each in sorted(races.items()):
        rows = bench_rows(with_loops(each.steps, each.tokens), labels)
        found.append(rows[rows["set"] == rows["set"].iloc[0]].assign(temperature=temperature))
    table = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    run.write_table("temperatures", table)
    run.update_metrics(temperatures=table.to_dict("records"))
