"""From logits to the target's processed distribution: temperature, top-k, top-p, penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import SwitchSDError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; every setting means what it means in transformers.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k likeliest (0: all).
        top_p: keep the smallest set with this probability.
        min_p: drop what is less likely than this share of the likeliest.
        repetition_penalty: > 1 makes tokens of the prefix less likely.
        min_new_tokens: no end of text before.
        seed: of the generator; same seed, settings and thread count, same text.
        processors: further transformers `LogitsProcessor`s, applied first. One that keeps a state
            is called once for every node that is visited, in the order of the text.

    Raises:
        SwitchSDError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    seed: int = 0
    processors: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        ranges = {
            "temperature": self.temperature >= 0,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": self.repetition_penalty > 0,
            "min_new_tokens": self.min_new_tokens >= 0,
            "seed": -(2**63) <= self.seed < 2**63,
        }
        for name, fine in ranges.items():
            if not fine:
                raise SwitchSDError(f"{name} = {getattr(self, name)} is out of range")

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken."""
        return self.temperature == 0


class Processor:
    """Applies the settings to one node's logits, under that node's own prefix."""

    def __init__(self, sampling: Sampling, prompt_length: int, eos_ids: Sequence[int]) -> None:
        from transformers.generation import logits_process as steps

        chain = steps.LogitsProcessorList(sampling.processors)
        if sampling.repetition_penalty != 1:
            chain.append(steps.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
        if sampling.min_new_tokens and eos_ids:
            chain.append(
                steps.MinNewTokensLengthLogitsProcessor(
                    prompt_length, sampling.min_new_tokens, list(eos_ids)
                )
            )
        if not sampling.greedy:
            if sampling.temperature != 1:
                chain.append(steps.TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k:
                chain.append(steps.TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                chain.append(steps.TopPLogitsWarper(sampling.top_p))
            if sampling.min_p > 0:
                chain.append(steps.MinPLogitsWarper(sampling.min_p))
        self._chain = chain

    def logits(
        self, row: Float[Tensor, d_vocab], committed: Sequence[int], path: Sequence[int]
    ) -> Float[Tensor, d_vocab]:
        """The row's logits after all settings, for the prefix committed + path."""
        if not self._chain:
            return row
        prefix = torch.tensor([[*committed, *path]], device=row.device)
        # a clone: some processors write into what they are given
        scores = row.float().clone()[None]
        return self._chain(cast(torch.LongTensor, prefix), cast(torch.FloatTensor, scores))[0]

    def probabilities(
        self, row: Float[Tensor, d_vocab], committed: Sequence[int], path: Sequence[int]
    ) -> Float[Tensor, d_vocab]:
        """The distribution the next token is drawn from."""
        return torch.softmax(self.logits(row, committed, path).double(), dim=-1)
