"""Every figure that is drawn straight from one table of a run: name, table, drawing, words.

The studies write all of theirs; the viewer shows those with a part.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from ...runs import Run
from ..figures import causal, explain, probing, thresholds
from ..figures.sites import layer_sweep, site_heatmap
from ..figures.words import METRIC_NAMES
from .figure_files import Recipe, write_figure_files


def probing_figures(tau: float, metric: str = "auroc") -> dict[str, Recipe]:
    """The figures of a probing study, and those a demo has of its probe.

    Args:
        tau: of the probe whose scores the run holds.
        metric: `auroc` or `f1`, of the first map and curves.
    """
    name = METRIC_NAMES[metric]

    def roc(table: pd.DataFrame) -> go.Figure:
        return thresholds.roc_by_set(table) if "set" in table else thresholds.roc(table, tau)

    def tau_curves(table: pd.DataFrame) -> go.Figure:
        sets = list(table["set"].unique())
        return thresholds.tau_curves(table, tau=tau, of="all" if "all" in sets else sets[0])

    sites, rates, corpora = "Layer × stream", "ROC and calibration", "Corpora"
    return {
        "layer-stream": Recipe("sites", partial(layer_sweep, metric=metric),
            f"{name} of a logistic probe at every layer and stream on CopyDiversity test prompts; "
            "the hidden state at j answers for the token at j + 2. After the paper's Figure 5.",
            sites),
        "layer-stream-f1": Recipe("sites", partial(layer_sweep, metric="f1"),
            "F1 at the τ chosen on validation, at every layer and stream."),
        "site-heatmap": Recipe("sites", partial(site_heatmap, metric=metric),
            f"The same {name} as a map; the best site is boxed.", sites),
        "roc": Recipe("probe_test", roc,
            "ROC of the label probe on each set. After the paper's Figure 6, right.", rates),
        "calibration": Recipe("calibration", thresholds.calibration,
            "Ten bins of score; below the diagonal the probe claims more copying than there is.",
            rates),
        "evaluation": Recipe("evaluation", probing.auroc_by_set,
            "The probe of the paper's label at offset 2, trained on CopyDiversity only. 95 % "
            "intervals over prompts.", rates),
        "given-match": Recipe("evaluation", probing.given_match,
            "Only positions where the context offers a copy; the question is whether three or more "
            "copied tokens would be accepted.", rates),
        "given-match-without-loops": Recipe(
            "evaluation", partial(probing.given_match, loops="without"),
            "The same without tokens in loops.",
        ),
        "tau": Recipe("tau_sweep", tau_curves,
            "All four benchmarks; the marked τ was chosen on CopyDiversity validation prompts. "
            "After the paper's Figure 6, left.", "τ sweep"),
        "corpora": Recipe("corpora", thresholds.confusion_by_corpus,
            "Probes from three training corpora on MT-Bench; rows sum to 1. After the paper's "
            "Figure 4.", corpora),
        "families": Recipe("families", probing.families,
            "CopyDiversity test prompts by template family, most copied at the top.", corpora),
        "training-tokens": Recipe("training_tokens", probing.training_tokens,
            "Whole prompts, drawn anew for each point.", corpora),
        "offsets": Recipe("offsets", probing.offsets,
            "A probe for each label offset, trained, thresholded and tested at itself.",
            "Label offset"),
        "controls": Recipe("controls", probing.controls,
            "The same fit on real labels and on labels that hold no copy mode, CopyDiversity test.",
            "Controls"),
        "probe-families": Recipe("probe_families", probing.probe_families,
            "Probe families at the label probe's site.", "Controls"),
        "tries": Recipe("tries", probing.tries,
            "What else was tried, each trained on CopyDiversity only.", "Controls"),
    }  # fmt: skip


def write_probing_figures(run: Run) -> list[Path]:
    """Write `figures/<name>.html` and `.csv` of every table that the run has.

    Raises:
        SwitchSDError: a table that is damaged, or a folder that cannot be written.
    """
    recipes = probing_figures(probing.scored_tau(run.metrics()))
    found = {name: each.of(run) for name, each in recipes.items() if run.has_table(each.table)}
    return write_figure_files(run.path / "figures", found)


def _separation(parts: pd.DataFrame) -> go.Figure:
    shown = parts[["part", "separation"]].rename(columns={"separation": "value"})
    return explain.waterfall(shown, top=20)


_MAP, _ABLATION, _STEERING = explain.head_map, causal.ablation_curve, causal.dose_response

CAUSAL: dict[str, Recipe] = {
    "kinds": Recipe("kinds", explain.kind_shares,
        "Share of the probe's separation of copy tokens from others; shares sum to 1."),
    "attribution-map": Recipe(
        "head_link", partial(_MAP, value="share", title="share of separation"),
        "Each head's exact share of the probe's separation, up to the probe's site.",
    ),
    "induction-map": Recipe(
        "head_scores", partial(_MAP, value="prefix_matching", title="prefix matching"),
        "Attention on keys whose preceding token is the query's token, on random repeats.",
    ),
    "copying-map": Recipe("head_scores", partial(_MAP, value="copying_embedding", title="copying"),
        "Re Σλ / Σ|λ| of each head's OV circuit, through the embeddings: 1 copies, −1 suppresses."),
    "waterfall": Recipe("attribution", _separation,
        "The separation in log-odds, part by part: mean on copy tokens minus mean on the others."),
    "copy-source-map": Recipe("head_scores", partial(_MAP, value="copy_source", title="attention"),
        "Attention on the position the copy path would copy from, on the evaluation texts."),
    "link": Recipe("head_link", explain.score_against_share,
        "Every head below the probe's site; the whiskers are 95 % intervals over prompts."),
    "ablation-auroc": Recipe("ablation", partial(_ABLATION, name="probe_auroc"),
        "The paper's label, teacher-forced on the clean text."),
    "ablation-auroc-given-match": Recipe(
        "ablation", partial(_ABLATION, name="probe_auroc_given_match"),
        "Three or more copied tokens accepted, where the context offers a copy.",
    ),
    "ablation-probability": Recipe("ablation", partial(_ABLATION, name="copy_probability"),
        "The model's own probability of the tokens it copied in the clean text."),
    "ablation-accepted": Recipe("ablation", partial(_ABLATION, name="accepted_copy_length"),
        "How many offered tokens of the clean text are still the argmax, one after the other, up "
        "to 20."),
    "ablation-loss": Recipe("ablation", partial(_ABLATION, name="loss_elsewhere"),
        "Prompt and completion tokens that are not copied."),
    "patching-copy": Recipe("patching", partial(causal.patching_regions, target="copy"),
        "For the logit of the copied token over the corrupted run's own choice."),
    "patching-probe": Recipe(
        "patching", partial(causal.patching_regions, target="probe"), "For the probe's logit.",
    ),
    "patching-agreement": Recipe(
        "patching_units", partial(causal.patching_agreement, target="copy"),
        "The largest units of every pair by gradient, for the copied token.",
    ),
    "patching-agreement-probe": Recipe(
        "patching_units", partial(causal.patching_agreement, target="probe"),
        "The largest units of every pair by gradient, for the probe.",
    ),
    "steering-taken-up": Recipe("steering", partial(_STEERING, name="taken_up"),
        "Positions where the context offers a token that the clean text has not."),
    "steering-kept": Recipe("steering", partial(_STEERING, name="kept"),
        "Positions where the clean text has the offered token."),
    "steering-loss": Recipe("steering", partial(_STEERING, name="loss_elsewhere"),
        "What the same doses cost where nothing is copied."),
    "matched": Recipe("matched", causal.matched_scores,
        "Only pairs of positions with equal match length, token class and repetitions count."),
    "matched-parts": Recipe("matched_parts", causal.matched_part_shares,
        "Heads are circles, everything else squares; shares of all parts sum to 1."),
}  # fmt: skip
"""The figures of an explanation study, by name."""
