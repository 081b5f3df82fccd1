"""`switchsd replay`: policies over a counterfactual trace, every combination of what is named."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import SwitchSDError
from .console import console, progress_bars

if TYPE_CHECKING:
    import pandas as pd

    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.replay.settings import Setting
    from ...analysis.traces.trace import CounterfactualTrace

_SHOWN = 40  # rows of a table on the screen


def replay_command(
    trace: Annotated[Path, typer.Option(help="Run folder of a trace.")] = Path("runs/trace"),
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/replay"),
    profile: Annotated[
        Path | None, typer.Option(help="Latency profile (JSON); without one there are no times.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy; may repeat, as all below. switchsd.")
    ] = None,
    tau: Annotated[list[float] | None, typer.Option(help="Threshold; the probe's.")] = None,
    w: Annotated[list[int] | None, typer.Option("--W", help="Copy candidates; 1.")] = None,
    d: Annotated[list[int] | None, typer.Option("--D", help="Tokens of each; 10.")] = None,
    n: Annotated[list[int] | None, typer.Option("--n", help="Tokens that match; 3.")] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(help="Neural path: eagle3, sps, tree_20_4_4 …, none; the policy's own."),
    ] = None,
    gamma: Annotated[
        list[int] | None, typer.Option(help="Lookahead; 5 with EAGLE-3, 4 with a model.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Of the gates that draw; 0.")] = None,
    reward: Annotated[str, typer.Option(help="Of the bandits: emitted or throughput.")] = "emitted",
    fit: Annotated[
        str | None, typer.Option(help="File with the fit of cost-aware; the shipped one.")
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Keep a table of every step.")] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Share of the oracle's gain (needs a profile).")
    ] = False,
) -> None:
    """Replay policies over a trace: steps, accepted lengths and, with a profile, speed."""
    from ...analysis.cost.profile import LatencyProfile
    from ...analysis.replay.plan import Plan
    from ...analysis.traces.trace import CounterfactualTrace
    from ...runs import Run

    Run.check(run)
    costs = LatencyProfile.load(profile) if profile is not None else None
    if oracle and costs is None:
        raise SwitchSDError("the oracle needs to know what steps cost: give --profile")
    if reward not in ("emitted", "throughput"):
        raise SwitchSDError(f"unknown reward {reward!r}: choose emitted or throughput")
    traced = CounterfactualTrace.read(trace)
    if costs is not None:
        costs.check(traced.fingerprint)
    named: dict[str, list[Any]] = {
        "policy": policy or ["switchsd"], "tau": tau or [None], "W": w or [1], "D": d or [10],
        "n": n or [3], "draft": draft or [None], "gamma": gamma or [None], "seed": seed or [0],
    }  # fmt: skip
    settings = _settings(named, reward, fit)
    for setting in settings:  # all are refused before any is played
        Plan.of(traced, setting.build(traced, costs), costs)
    config = {
        **named, "reward": reward, "fit": fit, "steps": steps, "oracle": oracle,
        "trace": str(trace), "fingerprint": traced.fingerprint, "prompts": len(traced.prompts),
        "profile": costs.describe() if costs is not None else None,
    }  # fmt: skip
    done = Run.start(run, command="replay", config=config)
    begin = time.perf_counter()
    table = _play(done, traced, settings, costs, steps=steps)
    seconds = time.perf_counter() - begin
    done.write_table("replay", table)
    rows = table[table["set"] == "all"].drop(columns="set")
    done.update_metrics(settings=len(settings), prompts=len(traced.prompts), seconds=seconds)
    _show(rows)
    if oracle and costs is not None:
        shares = _shares(traced, settings, costs)
        done.write_table("oracle_share", shares)
        done.update_metrics(oracle_share=shares[["policy", "set", "share"]].to_dict("records"))
        _show(shares)
    done.finish()
    console.print(f"{len(settings)} settings in {seconds:.1f} s: {done.path}", soft_wrap=True)


def _settings(named: dict[str, list[Any]], reward: Any, fit: str | None) -> list[Setting]:
    """Every combination; options that a policy does not read are not varied for it."""
    from ...analysis.replay.settings import Setting

    found = [
        Setting(reward=reward, fit=fit, **dict(zip(named, values, strict=True))).reduced()
        for values in itertools.product(*named.values())
    ]
    return list(dict.fromkeys(found))


def _play(
    run: Any,
    trace: CounterfactualTrace,
    settings: list[Setting],
    profile: LatencyProfile | None,
    *,
    steps: bool,
) -> pd.DataFrame:
    from dataclasses import asdict

    import pandas as pd

    from ...analysis.replay.replay import by_set, replay

    tables, taken = [], []
    with progress_bars() as progress:
        for number, setting in enumerate(settings):
            progress("replay", number, len(settings))
            played = replay(trace, setting, profile=profile)
            tables.append(by_set(trace, played).assign(setting=number, **asdict(setting)))
            if steps:
                taken.append(played.steps().assign(setting=number))
        progress("replay", len(settings), len(settings))
    if steps:
        run.write_table("steps", pd.concat(taken, ignore_index=True))
    table = pd.concat(tables, ignore_index=True)
    first = ["setting", *asdict(settings[0]), "set"]
    return table[[*first, *(name for name in table if name not in first)]]


def _shares(
    trace: CounterfactualTrace, settings: list[Setting], profile: LatencyProfile
) -> pd.DataFrame:
    """Against the oracle that has each setting's own W, D, n, draft and γ."""
    import pandas as pd

    from ...analysis.replay.oracle import oracle_shares
    from ...analysis.replay.settings import Setting
    from ...decoding.policies import recipe_of

    tables = []
    for number, setting in enumerate(settings):
        recipe = recipe_of(setting.policy)
        fixed = Setting() if recipe.draft == "none" else setting
        if "fit" in recipe.reads:
            fixed = Setting(draft=setting.draft)  # W, D, n and γ are its own choice
        table = oracle_shares(trace, {setting.policy: setting}, profile, fixed=fixed)
        tables.append(table.assign(setting=number))
    return pd.concat(tables, ignore_index=True)


def _show(table: pd.DataFrame) -> None:
    from ...analysis.pages.tables import to_markdown

    shown = table.head(_SHOWN).dropna(axis="columns", how="all")
    rounded = shown.round(3).astype(object).where(shown.notna(), "–")
    rounded.columns = [str(name).replace("_", " ") for name in rounded]
    console.print(to_markdown(rounded), soft_wrap=True, markup=False)
    if len(table) > _SHOWN:
        console.print(f"{len(table) - _SHOWN} more rows in the run folder", soft_wrap=True)
