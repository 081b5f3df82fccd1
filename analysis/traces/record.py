"""Trace one prompt: the target's greedy text once, and what every path is worth at each position.

The text is made by the decode loop itself, one token a step. What the drafts need to be judged (the
target's streams, the gap between its two largest logits) is read in those very forwards, so the
target does the work of a plain greedy generation and no more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
from ...decoding.step.verify import verify_greedy
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
    own: Mapping[str, Drafter] | None = None,
) -> TracedPrompt:
    """Decode greedily and judge every path at every position.

    Args:
        lens: the target.
        prompt_id: of the prompt.
        prompt: token ids.
        drafts: the head and the draft model; the columns of a missing one are left out.
        probe: without one the scores are NaN.
        settings: what is traced.
        own: further drafters by kind, each asked at every position.

    Raises:
        SwitchSDError: an empty prompt, one beyond the context, a probe of another model.
    """
    begin = time.perf_counter()
    sampling = default_sampling(lens)
    fused = () if drafts.head is None else fused_sites(lens.n_layers, drafts.head.config.aux_layers)
    streams, gaps = _Streams(fused, own or {}), _Gaps()
    for drafter in streams.own.values():
        drafter.follow(sampling)  # of the target itself; the watched one only looks the same
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
    drafted |= streams.columns(text)
    table = positions_table(
        prompt_id, text, scores=done.trace.scores, gaps=gaps.found(), ns=settings.ns,
        stops=frozenset(lens.eos_ids), drafted=drafted,
    )  # fmt: skip
    return TracedPrompt(text, table, generated - begin - streams.own_s, time.perf_counter() - begin)


class _Streams(Drafter):
    """Drafts nothing, keeps the streams of every processed token, and asks others what they would.

    Args:
        fused: sites whose streams are kept.
        own: further drafters by kind.

    Attributes:
        own_s: seconds that these took.
    """

    def __init__(self, fused: tuple[str, ...], own: Mapping[str, Drafter]) -> None:
        self.own, self.own_s = own, 0.0
        sites = (*fused, *(site for drafter in own.values() for site in drafter.sites))
        self.sites = tuple(dict.fromkeys(sites))
        self._fused = fused
        self._kept: list[Tensor] = []
        self._trees: dict[int, dict[str, DraftTree]] = {}

    def reset(self) -> None:
        """Forget the last prompt."""
        self._kept, self._trees = [], {}
        for drafter in self.own.values():
            drafter.reset()

    def absorb(self, streams: dict[str, Tensor]) -> None:
        """Keep the streams, in the order in which they are fused."""
        if self._fused:
            self._kept.append(torch.cat([streams[site] for site in self._fused], dim=-1))
        begin = time.perf_counter()
        for drafter in self.own.values():
            drafter.absorb({site: streams[site] for site in drafter.sites})
        self.own_s += time.perf_counter() - begin

    def propose(
        self, committed: list[int], limit: int, generator: torch.Generator | None
    ) -> DraftTree:
        """Nothing."""
        begin = time.perf_counter()
        self._trees[len(committed)] = {
            kind: drafter.propose(committed, limit, None) for kind, drafter in self.own.items()
        }
        self.own_s += time.perf_counter() - begin
        return DraftTree()

    def columns(self, text: Text) -> dict[str, Int[np.ndarray, pos]]:
        """What the others drafted at every position, and what the text has of it.

        Returns:
            Of each kind: accepted, named by the kind; …_proposed (nodes) and …_depth.
        """
        found: dict[str, Int[np.ndarray, pos]] = {}
        for kind in self.own:
            rows = []
            for place in text.positions.tolist():
                tree = self._trees.get(place, {}).get(kind, DraftTree())
                kept = verify_greedy(tree, partial(_next, (*text.ids[place:], -1))).nodes
                rows.append((len(kept), len(tree), int(tree.depths.max())))
            values = np.array(rows, dtype=np.int32).T
            names = (kind, f"{kind}_proposed", f"{kind}_depth")
            found |= dict(zip(names, values, strict=True))
        return found

    def joined(self) -> Float[Tensor, "processed three_d"]:
        """The streams of all tokens but the last, which is not processed."""
        return torch.cat(self._kept)


def _next(truth: Sequence[int], slot: int, path: Sequence[int]) -> int:
    """The text's own token behind so many of its."""
    return truth[len(path)]


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
