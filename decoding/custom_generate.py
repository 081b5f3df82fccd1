"""The lab's decoder behind transformers' own `model.generate(…, custom_generate=…)`.

    decode = custom_generate("switchsd", probe=probe)
    model.generate(**inputs, max_new_tokens=128, custom_generate=decode)

Everything else of the call keeps its meaning: sampling settings, logits processors, stopping
criteria, left-padded batches (decoded row by row). Two things do not arrive, since transformers
hands them to no custom method: a `streamer` (use `switchsd.decoding.stream`) and the `tokenizer` of
`stop_strings` (pass a `StopStringCriteria` in `stopping_criteria`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import SwitchSDError
from ..probing.lens import Lens
from ..probing.loading import wrap
from .engine import Decoding
from .policies import Options, Policy, build_policy
from .step.sampling import Sampling

_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def custom_generate(policy: str | Policy = "pld", **options: Any) -> Callable[..., Any]:
    """A decoding method for `model.generate(custom_generate=…)`.

    Args:
        policy: a name from the registry, or a `Policy`.
        options: of a named policy (`Options`).

    Raises:
        SwitchSDError: unknown policy; when called: beams, several sequences a prompt, pads inside
            or behind a prompt, embeddings instead of ids.
    """
    chosen = build_policy(policy, Options(**options)) if isinstance(policy, str) else policy
    lenses: dict[int, Lens] = {}

    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        if generation_config.num_beams > 1 or generation_config.num_return_sequences > 1:
            raise SwitchSDError("speculative decoding takes one beam and one sequence a prompt")
        asked = [f for f in _OUTPUTS if getattr(generation_config, f, False)]
        if asked:
            raise SwitchSDError(f"{', '.join(asked)}: not kept here; leave it out")
        if model_kwargs.get("inputs_embeds") is not None:
            raise SwitchSDError("speculative decoding needs token ids, not embeddings")
        if id(model) not in lenses:
            lenses[id(model)] = wrap(model, device=str(model.device))
        lens = lenses[id(model)]
        rows = []
        for number, prompt in enumerate(_prompts(input_ids, model_kwargs.get("attention_mask"))):
            decoding = Decoding(
                lens,
                prompt,
                chosen,
                max_new_tokens=generation_config.max_length - input_ids.shape[1],
                # the processors hold temperature and the rest already; 1 leaves them as they are
                sampling=Sampling(
                    temperature=1.0 if generation_config.do_sample else 0.0,
                    seed=int(torch.randint(2**31, ())),  # follows torch.manual_seed
                    processors=(
                        _Padded(copy.deepcopy(logits_processor), input_ids, number, len(prompt)),
                    ),
                ),
                eos_ids=_ids(generation_config.eos_token_id),
                stop_when=_criteria(stopping_criteria, input_ids[number].tolist(), input_ids),
            )
            for _ in decoding.steps():
                pass
            rows.append(decoding.trace.generated)
        sequences = _stack(input_ids, rows, generation_config)
        if generation_config.return_dict_in_generate:
            from transformers.generation import GenerateDecoderOnlyOutput

            return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
        return sequences

    return decode


class _Padded:
    """Logits processors as they act on one row of the padded batch they were made for."""

    def __init__(self, processors: Any, input_ids: Tensor, row: int, length: int) -> None:
        self.processors, self.row, self.batch = processors, row, len(input_ids)
        self.pads = input_ids[row : row + 1, : input_ids.shape[1] - length]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids = torch.cat([self.pads, input_ids], dim=1).repeat(self.batch, 1)
        out = self.processors(ids, scores.repeat(self.batch, 1))
        return out[self.row : self.row + 1]


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    if mask is None:
        return input_ids.tolist()
    if (mask.diff(dim=1) < 0).any():
        raise SwitchSDError("pads behind or inside a prompt: pad on the left (padding_side='left')")
    return [row[keep.bool()].tolist() for row, keep in zip(input_ids, mask, strict=True)]


def _criteria(
    criteria: Any, prompt: list[int], like: Tensor
) -> Callable[[Sequence[int]], bool] | None:
    if not len(criteria):
        return None

    def done(new: Sequence[int]) -> bool:
        ids = torch.tensor([[*prompt, *new]], device=like.device)
        return bool(criteria(ids, None)[0])

    return done


def _stack(input_ids: Tensor, rows: list[list[int]], config: Any) -> Tensor:
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    new = torch.full((len(rows), max(map(len, rows))), pad, device=input_ids.device)
    for number, row in enumerate(rows):
        new[number, : len(row)] = torch.tensor(row, device=input_ids.device)
    return torch.cat([input_ids, new], dim=1)


def _ids(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (int(value),)
