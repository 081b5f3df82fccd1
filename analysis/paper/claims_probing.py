"""Claims about probes, judged by a run of `switchsd probe study`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from ...errors import SwitchSDError
from ...intervals import Estimate
from ...runs import Run
from .claims import PROBING, Claim, Question

_STREAMS = ("hook_attn_out", "hook_mlp_out", "hook_resid_mid", "hook_resid_post")


def probing_claims(run: Run | None) -> list[Claim]:
    """The rows about probes; without a run, or without one of its parts, they are not measured yet.

    Raises:
        SwitchSDError: a folder that holds another command's run.
    """
    metrics: dict[str, Any] = {}
    if run is not None:
        command = run.manifest().get("command")
        if command != "probe study":
            raise SwitchSDError(f"{run.path} is a run of `switchsd {command}`, not of probe study")
        metrics = run.metrics()
    return [question.answer(*_found(find, metrics)) for question, find in _QUESTIONS]


def _found(
    find: Callable[[dict[str, Any]], tuple[Estimate, str]], metrics: dict[str, Any]
) -> tuple[Estimate | None, str]:
    try:
        return find(metrics)
    except (KeyError, IndexError):  # that part of the study was not run
        return None, ""


def _corpora(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {row["corpus"]: row for row in metrics["corpora"]}


def _corpus(name: str) -> Callable[[dict[str, Any]], tuple[Estimate, str]]:
    def find(metrics: dict[str, Any]) -> tuple[Estimate, str]:
        row = _corpora(metrics)[name]
        note = f"always saying copy: {row['f1_always_copy']:.2f}"
        note += _without(metrics, "corpora", "corpus", name, "f1")
        return Estimate(row["f1"], row["f1_low"], row["f1_high"]), note

    return find


def _without(metrics: dict[str, Any], table: str, key: str, name: str, measure: str) -> str:
    """The same measure without loops, where the study has it."""
    rows = metrics.get(f"{table}_without_loops", [])
    found = next((row[measure] for row in rows if row[key] == name), None)
    return "" if found is None else f"; without loops {found:.3f}"


def _step(better: str, worse: str) -> Callable[[dict[str, Any]], tuple[Estimate, str]]:
    def find(metrics: dict[str, Any]) -> tuple[Estimate, str]:
        rows = _corpora(metrics)
        first, second = rows[better], rows[worse]
        # both are of the same prompts, so the difference itself varies less than this says
        found = first["f1"] - second["f1"]
        down = np.hypot(first["f1"] - first["f1_low"], second["f1_high"] - second["f1"])
        up = np.hypot(first["f1_high"] - first["f1"], second["f1"] - second["f1_low"])
        note = "F1 on MT-Bench, the two taken as independent"
        return Estimate(found, float(found - down), float(found + up)), note

    return find


def _by_layer(metrics: dict[str, Any]) -> pd.DataFrame:
    sites = pd.DataFrame(metrics["sites"])
    return sites.pivot(index="layer", columns="stream", values="auroc")


def _attention(first: str, second: str) -> Callable[[dict[str, Any]], tuple[Estimate, str]]:
    def find(metrics: dict[str, Any]) -> tuple[Estimate, str]:
        sites = pd.DataFrame(metrics["sites"]).pivot(
            index="layer", columns="stream", values="auroc"
        )
        ahead = (sites[first] > sites[second]).sum()
        return (
            Estimate(float(ahead / len(sites)), np.nan, np.nan),
            f"{first} is ahead of {second} at {ahead} of {len(sites)} layers (AUROC)",
        )

    return find


def _peak(metrics: dict[str, Any]) -> tuple[Estimate, str]:
    sites = pd.DataFrame(metrics["sites"])
    best = sites.iloc[int(sites["auroc"].argmax())]
    layers = int(sites["layer"].max()) + 1
    return (
        Estimate(float(best["layer"] / layers), np.nan, np.nan),
        f"{best['stream']}, layer {best['layer']} of {layers} (AUROC {best['auroc']:.3f})",
    )


def _decline(metrics: dict[str, Any]) -> tuple[Estimate, str]:
    sites = _by_layer(metrics)
    streams = [name for name in _STREAMS if name in sites]
    falls = sites[streams].iloc[-1] - sites[streams].max()
    name = falls.idxmax()
    return (
        Estimate(float(falls.max()), np.nan, np.nan),
        f"last layer against the best, the stream that falls least ({name})",
    )


def _auroc(name: str) -> Callable[[dict[str, Any]], tuple[Estimate, str]]:
    def find(metrics: dict[str, Any]) -> tuple[Estimate, str]:
        row = next((row for row in metrics["evaluation"] if row["set"] == name), None)
        if row is None:
            raise KeyError(name)
        found = Estimate(row["auroc"], row["auroc_low"], row["auroc_high"])
        note = f"{row['n_tokens']:,} tokens, label offset 2"
        return found, note + _without(metrics, "evaluation", "set", name, "auroc")

    return find


def _tau(metrics: dict[str, Any]) -> tuple[Estimate, str]:
    return Estimate(metrics["label_probe"]["tau"], np.nan, np.nan), "of the label probe, offset 2"


_QUESTIONS: list[tuple[Question, Callable[[dict[str, Any]], tuple[Estimate, str]]]] = [
    (Question("F1 of a probe trained on ConstructedCopy", "§4.3.1, Figure 4", 0.65, PROBING,
              above=0.60, below=0.70), _corpus("constructed_copy")),
    (Question("F1 of a probe trained on natural text", "§4.3.1, Figure 4", 0.81, PROBING,
              above=0.76, below=0.86), _corpus("natural_text")),
    (Question("F1 of a probe trained on CopyDiversity", "§4.3.1, Figure 4", 0.87, PROBING,
              above=0.82, below=0.92), _corpus("copy_diversity")),
    (Question("order of the corpora: natural text over ConstructedCopy", "§4.3.1", 0.16, PROBING,
              above=0.0), _step("natural_text", "constructed_copy")),
    (Question("order of the corpora: CopyDiversity over natural text", "§4.3.1", 0.06, PROBING,
              above=0.0), _step("copy_diversity", "natural_text")),
    (Question("attention above MLP at every layer (sublayers' outputs)", "§4.3.2, Figure 5", 1.0,
              PROBING, above=0.9), _attention("hook_attn_out", "hook_mlp_out")),
    (Question("attention above MLP at every layer (residual stream)", "§4.3.2, Figure 5", 1.0,
              PROBING, above=0.9), _attention("hook_resid_mid", "hook_resid_post")),
    (Question("the signal peaks at mid-depth (share of the layers; 0.25–0.75 is mid)",
              "§4.3.2, Figure 5", 14 / 32, PROBING, above=0.25, below=0.75), _peak),
    (Question("the signal declines in the final layers", "§4.3.2, Figure 5", None, PROBING,
              below=0.0), _decline),
    (Question("AUC of the probe above 0.99 (CopyDiversity test)", "§4.3.3, Figure 6", 0.99, PROBING,
              above=0.99), _auroc("copy_diversity")),
    (Question("AUC of the probe above 0.99 (benchmarks)", "§4.3.3, Figure 6", 0.99, PROBING,
              above=0.99), _auroc("all")),
    (Question("F1-optimal threshold near 0.4 (0.3–0.5)", "§4.3.3, Figure 6", 0.4, PROBING,
              above=0.3, below=0.5), _tau),
]  # fmt: skip
