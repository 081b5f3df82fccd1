"""The probe that heads are held against MLPs at: the served one, or the best residual-stream one.

Only the residual stream holds every part. Where the served probe reads something else, a linear
probe is trained at every `hook_resid_mid` and `hook_resid_post`, and validation chooses.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch

from ...data.chat import special_ids
from ...progress import Progress, silent
from ..activations.capture import capture
from ..anatomy import Site
from ..copy_probe import CopyProbe
from ..corpora.token_table import label_table
from ..lens import Lens
from .sweep import probe_data, sweep

_STREAMS = ("hook_resid_mid", "hook_resid_post")


def is_residual(probe: CopyProbe) -> bool:
    """Whether the probe reads the residual stream."""
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
    sites = [f"blocks.{layer}.{stream}" for layer in range(lens.n_layers) for stream in _STREAMS]
    store = capture(lens, corpus, sites, folder / "activations", progress=progress)
    breaks = special_ids(lens.tokenizer) if lens.tokenizer is not None else frozenset()
    labels = label_table(corpus, breaks=breaks)
    data = probe_data(store.columns(), labels, offset=served.label_offset, seed=seed)
    fitted = sweep(store, data, progress=progress).fitted
    best = max(fitted, key=lambda fit: fit.valid_auroc)
    probe = CopyProbe(
        site=best.site,
        label_offset=served.label_offset,
        tau=best.tau,
        weight=torch.from_numpy(best.probe.weight),
        bias=best.probe.bias,
        model=lens.name,
        fingerprint=lens.fingerprint,
        dtype=lens.dtype,
        versions={name: version(name) for name in ("switchsd", "torch", "transformers")},
        metrics={"target": "copied", "auroc": best.test_auroc, "valid_auroc": best.valid_auroc},
    )
    probe.save(folder / "probe")
    return probe
