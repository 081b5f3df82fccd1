"""Mean ablation of attention heads: a head's output is its mean over training text, everywhere.

The head then says the same at every position, so what it says about this text is gone while what it
adds on average stays (ablating with zeros would take that too).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import SwitchSDError
from ...intervals import Statistic, interval, minus
from ...probing.activations.capture import TextBatch, text_batches
from ...probing.copy_probe import CopyProbe
from ...probing.interventions import Edit
from ...probing.lens import Lens
from ...progress import Progress, silent
from ..explain.head_sets import Head, check_heads
from .copy_texts import CopyTexts
from .teacher_forced import FIGURES, Edits, losses, teacher_forced


@dataclass(frozen=True)
class HeadMeans:
    """Mean output of every head over training text.

    Attributes:
        z: [layer, head, d_head], of `attn.hook_z`.
        n_tokens: it was taken over.
    """

    z: Float[Tensor, "layer head d_head"]
    n_tokens: int

    def frame(self) -> pd.DataFrame:
        """layer, head, n_tokens, mean (d_head numbers): as a run keeps them."""
        n_layers, n_heads, _ = self.z.shape
        rows = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
        return pd.DataFrame(rows, columns=["layer", "head"]).assign(
            n_tokens=self.n_tokens, mean=list(self.z.flatten(0, 1).numpy())
        )

    @classmethod
    def of(cls, frame: pd.DataFrame) -> HeadMeans:
        """Read back what `frame` gave."""
        layers = int(frame["layer"].max()) + 1
        mean = np.stack([np.asarray(row, np.float32) for row in frame["mean"]])
        return cls(
            torch.from_numpy(mean).unflatten(0, (layers, -1)), int(frame["n_tokens"].iloc[0])
        )


def head_means(lens: Lens, corpus: pd.DataFrame, *, progress: Progress = silent) -> HeadMeans:
    """Mean of every head's output over all tokens of a corpus, whatever their position.

    The first token of a text is left out: attention has nothing else to look at there.

    Args:
        lens: the target, live backend.
        corpus: prompt_ids, completion_ids; training text, never what is evaluated.
        progress: told the number of texts.

    Raises:
        SwitchSDError: no text, or heads that this model's outputs do not have.
    """
    if corpus.empty:
        raise SwitchSDError("no training text to take the heads' means over")
    sites = [f"blocks.{layer}.attn.hook_z" for layer in range(lens.n_layers)]
    lens.check_sites(sites)
    total = torch.zeros(lens.n_layers, lens.n_heads, lens.d_head, dtype=torch.float64)
    tokens = done = 0
    for batch in text_batches(lens, corpus, sites, whole=True, buffer_bytes=128 * 2**20):
        keep = batch.keep.clone()
        keep[:, 0] = False
        streams = lens.forward(
            batch.ids.to(lens.device), sites=sites, rows=keep.to(lens.device), logits="none"
        ).streams
        for layer, site in enumerate(sites):
            total[layer] += streams[site].double().sum(0).cpu()
        tokens, done = tokens + int(keep.sum()), done + len(batch.rows)
        progress("head means", done, len(corpus))
    return HeadMeans((total / tokens).float(), tokens)


def ablating(heads: Sequence[Head], means: HeadMeans) -> Edits:
    """Edits that set these heads to their means.

    Raises:
        SwitchSDError: a head that is not there, or named twice.
    """
    n_layers, n_heads, _ = means.z.shape
    check_heads(heads, n_layers, n_heads)
    of_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        of_layer.setdefault(layer, []).append(head)

    def setting(layer: int, chosen: list[int]) -> Edit:
        def set_to_mean(z: Tensor) -> Tensor:
            changed = z.clone()
            changed[:, :, chosen] = means.z[layer, chosen].to(z)
            return changed

        return set_to_mean

    edits = {f"blocks.{layer}.attn.hook_z": setting(layer, hs) for layer, hs in of_layer.items()}

    def of(batch: TextBatch) -> Mapping[str, Edit]:
        return edits

    return of


def ablate(
    lens: Lens,
    texts: CopyTexts,
    probe: CopyProbe,
    means: HeadMeans,
    sets: Sequence[Sequence[Head]],
    *,
    what: str = "ablation",
    progress: Progress = silent,
) -> pd.DataFrame:
    """Run the texts with each of these sets of heads ablated; an empty set ablates nothing.

    Args:
        lens: the target, live backend.
        texts: to judge by; not what the means were taken over.
        probe: whose logits are read.
        means: of `head_means`.
        sets: of heads, one a draw.
        what: is being done, for progress.
        progress: told the number of draws.

    Returns:
        draw, place (row of `texts.tokens`; after them those of `texts.elsewhere`), and the columns
        of `teacher_forced`.
    """
    parts = []
    for draw, heads in enumerate(sets):
        progress(what, draw, len(sets))
        table, elsewhere = teacher_forced(lens, texts, probe, ablating(heads, means))
        both = pd.concat([table, elsewhere], ignore_index=True)
        both["hit"] = both["hit"].fillna(False).astype(bool)
        both["candidate_hit"] = both["candidate_hit"].fillna(False).astype(bool)
        parts.append(both.assign(draw=draw, place=np.arange(len(both))))
    progress(what, len(sets), len(sets))
    return pd.concat(parts, ignore_index=True)


def pass_losses(texts: CopyTexts, passes: pd.DataFrame) -> list[dict[str, Statistic]]:
    """The figures of each draw of `ablate` (or of any passes kept in that form)."""
    n = len(texts.tokens)
    found = []
    for draw in range(int(passes["draw"].max()) + 1):
        rows = passes[passes["draw"] == draw].sort_values("place")
        found.append(losses(texts, rows.iloc[:n], rows.iloc[n:]))
    return found


def ablation_row(
    clean: dict[str, Statistic],
    ablated: list[dict[str, Statistic]],
    n_prompts: int,
    *,
    against: list[dict[str, Statistic]] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Every figure with its interval, its change from the clean model, and from random heads.

    Args:
        clean: figures of the unedited model.
        ablated: figures of each draw.
        n_prompts: of the texts.
        against: the draws of matched random heads.
        seed: of the resampling.

    Returns:
        For each of `FIGURES`: itself, `_change` (ablated − clean) and, with `against`,
        `_against_random` (ablated − random), each with `_low` and `_high`.
    """
    row: dict[str, float] = {}
    for name in FIGURES:
        draws = [one[name] for one in ablated]
        row |= interval(draws, n_prompts, seed=seed).columns(name)
        change = [minus(draw, clean[name]) for draw in draws]
        row |= interval(change, n_prompts, seed=seed).columns(f"{name}_change")
        if against is not None:
            excess = [minus(draws[0], other[name]) for other in against]
            row |= interval(excess, n_prompts, seed=seed).columns(f"{name}_against_random")
    return row
