"""What the report is made of: the run's tables, checked and read once, and the figures of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from ..errors import SwitchSDError
from ..runs import Run
from . import figures
from .curves import accepted_by_path, roc_curve, yield_by_probe_state
from .tables import main_policy, policy_name


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


@dataclass(frozen=True)
class Drawn:
    """A figure with its data and the words below it."""

    figure: go.Figure
    data: pd.DataFrame
    caption: str


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
        "layer-sweep": Drawn(
            figures.layer_sweep(sites, chosen=chosen),
            sites,
            f"AUROC of a linear probe at each layer and stream, on test tokens. {where}.",
        ),
        "site-heatmap": Drawn(
            figures.site_heatmap(sites, chosen=chosen),
            sites,
            f"The same figures as a map; the chosen site is boxed. {where}.",
        ),
        "roc": Drawn(
            figures.roc(test, sources.probe["tau"]),
            roc_curve(test),
            f"Every threshold's rates on {len(test):,} test tokens of "
            f"{test['prompt_id'].nunique()} prompts; the diamond is τ. {where}.",
        ),
        "accepted-by-probe-state": Drawn(
            figures.accepted_by_probe_state(with_match),
            yield_by_probe_state(with_match),
            "How many tokens the copy path would have had accepted, by what the probe says there, "
            f"at each of {len(with_match):,} positions where the context offers a candidate. "
            f"{where}.",
        ),
        "policy-speedups": Drawn(
            figures.policy_speedups(sources.decoding),
            sources.decoding,
            f"Tokens per second over vanilla's, {prompts} prompts. {where}.",
        ),
        "accepted-by-path": Drawn(
            figures.accepted_histogram(steps),
            accepted_by_path(steps),
            f"Accepted draft tokens a step, {policy_name(sources.policy)}, {prompts} prompts. "
            f"{where}.",
        ),
    }
