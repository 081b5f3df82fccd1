"""The study's figures by name: the table each draws, the function, and what it shows."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go

from . import causal_figures as draw
from .explain_figures import head_map, kind_shares, score_against_share, waterfall

Draw = Callable[[pd.DataFrame], go.Figure]


def _as_parts(parts: pd.DataFrame) -> pd.DataFrame:
    return parts[["part", "separation"]].rename(columns={"separation": "value"})


FIGURES: dict[str, tuple[str, Draw, str]] = {
    "kinds": (
        "kinds",
        kind_shares,
        "Share of the probe's separation of copy tokens from others; shares sum to 1.",
    ),
    "attribution-map": (
        "head_link",
        lambda table: head_map(table, "share", "share of separation"),
        "Each head's exact share of the probe's separation, up to the probe's site.",
    ),
    "induction-map": (
        "head_scores",
        lambda table: head_map(table, "prefix_matching", "prefix matching"),
        "Attention on keys whose preceding token is the query's token, on random repeats.",
    ),
    "copying-map": (
        "head_scores",
        lambda table: head_map(table, "copying_embedding", "copying"),
        "Re Σλ / Σ|λ| of each head's OV circuit, through the embeddings: 1 copies, −1 suppresses.",
    ),
    "waterfall": (
        "attribution",
        lambda table: waterfall(_as_parts(table), top=20),
        "The separation in log-odds, part by part: mean on copy tokens minus mean on the others.",
    ),
    "copy-source-map": (
        "head_scores",
        lambda table: head_map(table, "copy_source", "attention"),
        "Attention on the position the copy path would copy from, on the evaluation texts.",
    ),
    "link": (
        "head_link",
        score_against_share,
        "Every head below the probe's site; the whiskers are 95 % intervals over prompts.",
    ),
    "ablation-auroc": (
        "ablation",
        lambda table: draw.ablation_curve(table, "probe_auroc"),
        "The paper's label, teacher-forced on the clean text.",
    ),
    "ablation-auroc-given-match": (
        "ablation",
        lambda table: draw.ablation_curve(table, "probe_auroc_given_match"),
        "Three or more copied tokens accepted, where the context offers a copy.",
    ),
    "ablation-probability": (
        "ablation",
        lambda table: draw.ablation_curve(table, "copy_probability"),
        "The model's own probability of the tokens it copied in the clean text.",
    ),
    "ablation-accepted": (
        "ablation",
        lambda table: draw.ablation_curve(table, "accepted_copy_length"),
        "How many offered tokens of the clean text are still the argmax, one after the other, up "
        "to 20.",
    ),
    "ablation-loss": (
        "ablation",
        lambda table: draw.ablation_curve(table, "loss_elsewhere"),
        "Prompt and completion tokens that are not copied.",
    ),
    "patching-copy": (
        "patching",
        lambda table: draw.patching_regions(table, "copy"),
        "For the logit of the copied token over the corrupted run's own choice.",
    ),
    "patching-probe": (
        "patching",
        lambda table: draw.patching_regions(table, "probe"),
        "For the probe's logit.",
    ),
    "patching-agreement": (
        "patching_units",
        lambda table: draw.patching_agreement(table, "copy"),
        "The largest units of every pair by gradient, for the copied token.",
    ),
    "patching-agreement-probe": (
        "patching_units",
        lambda table: draw.patching_agreement(table, "probe"),
        "The largest units of every pair by gradient, for the probe.",
    ),
    "steering-taken-up": (
        "steering",
        lambda table: draw.dose_response(table, "taken_up"),
        "Positions where the context offers a token that the clean text has not.",
    ),
    "steering-kept": (
        "steering",
        lambda table: draw.dose_response(table, "kept"),
        "Positions where the clean text has the offered token.",
    ),
    "steering-loss": (
        "steering",
        lambda table: draw.dose_response(table, "loss_elsewhere"),
        "What the same doses cost where nothing is copied.",
    ),
    "matched": (
        "matched",
        draw.matched_scores,
        "Only pairs of positions with equal match length, token class and repetitions count.",
    ),
    "matched-parts": (
        "matched_parts",
        draw.matched_part_shares,
        "Heads are circles, everything else squares; shares of all parts sum to 1.",
    ),
}
"""Name → (table, figure function, caption)."""
