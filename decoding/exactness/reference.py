"""The judge: transformers' own greedy text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...probing.lens import Lens


def reference_ids(lens: Lens, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """transformers' own greedy continuation."""
    ids = torch.tensor([list(prompt)], device=lens.device)
    pad = lens.eos_ids[0] if lens.eos_ids else 0
    out = lens.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=pad,
    )
    return out[0, len(prompt) :].tolist()
