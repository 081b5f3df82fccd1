"""One probe from one corpus, chosen as the lab chooses its label probe, of fewer prompts.

Every site is tried on the paper's label at one offset. C and the site are chosen by AUROC on
validation prompts, τ by F1 there; test prompts choose nothing. The demo's probe is made here, and
the one that heads are held against MLPs at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ...data.chat import special_ids
from ...progress import Progress, silent
from ..activations.capture import capture
from ..anatomy import Site
from ..copy_probe import CopyProbe
from ..corpora.partition import assign_parts, parts_of
from ..corpora.surface import token_classes
from ..corpora.token_table import GATE_LAG, token_table
from ..lens import Lens
from ..training.probing_set import ProbingSet
from .choice import as_copy_probe, choose
from .evaluation import Scored, score_set
from .studies import layer_stream_study

RESIDUAL = ("hook_resid_mid", "hook_resid_post")


@dataclass(frozen=True)
class SiteProbe:
    """A probe and what it was chosen from.

    Attributes:
        probe: with its scores on the test prompts.
        layers: `studies.layer_stream_study`, a row a site.
        test: the tokens of the test prompts, scored.
        tokens: all labelled tokens (`token_table`).
    """

    probe: CopyProbe
    layers: pd.DataFrame
    test: Scored
    tokens: pd.DataFrame


def site_probe(
    lens: Lens,
    corpus: pd.DataFrame,
    streams: Sequence[str],
    folder: Path,
    *,
    among: Sequence[str] | None = None,
    offset: int = GATE_LAG,
    seed: int = 0,
    progress: Progress = silent,
) -> SiteProbe:
    """Train a probe at every layer of some streams and keep the best.

    Args:
        lens: the model.
        corpus: prompt_id, family, prompt_ids, completion_ids.
        streams: as in `hook_resid_post`.
        folder: of the activations; finished ones stay.
        among: the streams that the kept one may read; all if left out.
        offset: the hidden state at j answers for the token at j + offset.
        seed: of the split by prompt and of intervals.
        progress: told what is being done.

    Raises:
        SwitchSDError: too few prompts to split, one class only.
    """
    sites = [f"blocks.{layer}.{stream}" for layer in range(lens.n_layers) for stream in streams]
    store = capture(lens, corpus, sites, folder, progress=progress)
    if lens.tokenizer is None:  # classes only serve the surface features, which choose nothing
        classes, breaks = np.zeros(lens.model.config.vocab_size, np.int64), frozenset[int]()
    else:
        classes, breaks = token_classes(lens.tokenizer), special_ids(lens.tokenizer)
    tokens = token_table(corpus, classes, breaks=breaks)
    parts = assign_parts(corpus["prompt_id"], corpus["family"], seed=seed)
    data = ProbingSet("copy_diversity", tokens, store, parts_of(tokens["prompt_id"], parts))
    layers = layer_stream_study(data, sites, offset=offset, progress=progress)
    eligible = layers[layers["stream"].isin(streams if among is None else among)]
    chosen = choose(data, eligible.assign(offset=offset, target="copied"), by="valid_auroc")
    probe = as_copy_probe(chosen, data, lens, seed=seed)
    test = score_set(data, chosen.fitted.probe, chosen.site, data.rows("test"), lag=offset)
    return SiteProbe(probe, layers, test, tokens)


def is_residual(probe: CopyProbe) -> bool:
    """Whether the probe reads the residual stream, which alone holds every part."""
    return Site.parse(probe.site).stream.startswith("hook_resid")


def residual_probe(
    lens: Lens,
    served: CopyProbe,
    corpus: pd.DataFrame,
    folder: Path,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> CopyProbe:
    """The served probe if it reads the residual stream, else the best one that does.

    Args:
        lens: the model.
        served: the probe whose label offset is kept.
        corpus: texts to train on, other than those of the study.
        folder: where activations and the probe are kept; a finished probe is read back.
        seed: of the split by prompt.
        progress: told what is being done.

    Raises:
        SwitchSDError: too few prompts to split, one class only, a folder that holds another model's
            probe.
    """
    if is_residual(served):
        return served
    if (folder / "probe" / "probe.json").is_file():
        return CopyProbe.load(folder / "probe", lens)
    made = site_probe(
        lens, corpus, RESIDUAL, folder / "activations",
        offset=served.label_offset, seed=seed, progress=progress,
    )  # fmt: skip
    made.probe.save(folder / "probe")
    return made.probe
