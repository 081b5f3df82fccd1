"""Trace one prompt: the target's greedy text once, and what every path is worth at each position.

The text is made by the decode loop itself, one token a step. What the drafts need to be judged (the
target's streams, the gap between its two largest logits) is read in those very forwards, so the
target does the work of a plain greedy generation and no more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...decoding.drafters.drafter import Drafter
from ...decoding.drafts import Drafts
from ...decoding.eagle3.head import fused_sites
from ...decoding.engine import default_sampling, generate
from ...decoding.gates.gate import NeuralGate
from ...decoding.policies import Policy
from ...decoding.step.sampling import Sampling
from ...decoding.step.tree import DraftTree
from ...probing.copy_probe import CopyProbe
from ...probing.lens import Lens
from .columns import Text, TraceSettings, positions_table
from .neural_columns import eagle3_columns, sps_columns


@dataclass(frozen=True)
class TracedPrompt:
    """A traced prompt.

    Attributes:
        text: prompt and greedy continuation.
        positions: see `counterfactual.positions_table`.
        generation_s: time of the generation, its prefill included.
        trace_s: time of everything.
    """

    text: Text
    positions: pd.DataFrame
    generation_s: float
    trace_s: float


def trace_prompt(
    lens: Lens,
    prompt_id: str,
    prompt: Sequence[int],
    drafts: Drafts,
    probe: CopyProbe | None,
    settings: TraceSettings,
) -> TracedPrompt:
    """Decode greedily and judge every path at every position.

    Args:
        lens: the target.
        prompt_id: of the prompt.
        prompt: token ids.
        drafts: the head and the draft model; the columns of a missing one are left out.
        probe: without one the scores are NaN.
        settings: what is traced.

    Raises:
        SwitchSDError: an empty prompt, one beyond the context, a probe of another model.
    """
    begin = time.perf_counter()
    sampling = default_sampling(lens)
    fused = () if drafts.head is None else fused_sites(lens.n_layers, drafts.head.config.aux_layers)
    streams, gaps = _Streams(fused), _Gaps()
    watcher = Policy("vanilla", NeuralGate(), None, streams, probe)
    done = generate(
        lens, prompt, watcher, max_new_tokens=settings.max_new_tokens,
        sampling=_watched(sampling, gaps),
    )  # fmt: skip
    generated = time.perf_counter()
    text = Text(
        (*(int(token) for token in prompt), *done.ids), len(prompt), done.trace.finish,
        settings.max_new_tokens, lens.n_ctx,
    )  # fmt: skip
    drafted: dict[str, Int[np.ndarray, pos]] = {}
    if drafts.head is not None:
        drafted |= eagle3_columns(
            drafts.head, lens, text, streams.joined(), sampling, settings.trees
        )
    if drafts.model is not None:
        drafted |= sps_columns(drafts.model, lens, text, sampling)
    table = positions_table(
        prompt_id, text, scores=done.trace.scores, gaps=gaps.found(), ns=settings.ns,
        stops=frozenset(lens.eos_ids), drafted=drafted,
    )  # fmt: skip
    return TracedPrompt(text, table, generated - begin, time.perf_counter() - begin)


class _Streams(Drafter):
    """Drafts nothing and keeps the streams of every processed token."""

    def __init__(self, fused: tuple[str, ...]) -> None:
        self.sites = tuple(dict.fromkeys(fused))
        self._fused = fused
        self._kept: list[Tensor] = []

    def reset(self) -> None:
        """Forget the last prompt."""
        self._kept = []

    def absorb(self, streams: dict[str, Tensor]) -> None:
        """Keep the streams, in the order in which they are fused."""
        if self._fused:
            self._kept.append(torch.cat([streams[site] for site in self._fused], dim=-1))

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """Nothing."""
        return DraftTree()

    def joined(self) -> Float[Tensor, "processed three_d"]:
        """The streams of all tokens but the last, which is not processed."""
        return torch.cat(self._kept)


class _Gaps:
    """A logits processor that changes nothing and keeps the gap between the two largest."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        best = scores[0].topk(2).values
        self._kept.append(best[0] - best[1])
        return scores

    def found(self) -> list[float]:
        """One a new token."""
        return torch.stack(self._kept).tolist()


def _watched(sampling: Sampling, gaps: _Gaps) -> Sampling:
    """The same choice of tokens, with the gap taken last."""
    if sampling.repetition_penalty == 1:
        return replace(sampling, processors=(gaps,))
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    return replace(sampling, repetition_penalty=1.0, processors=(penalty, gaps))
