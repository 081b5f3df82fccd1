"""Cross-entropy against a target's whole distribution, without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_ROWS = 256  # handled at once: their logits stay in the processor's cache


def soft_cross_entropy(
    x: Float[Tensor, "row d"],
    weight: Float[Tensor, "vocab d"],
    target: Float[Tensor, "position vocab"],
    position: Int[Tensor, " row"],
) -> Float[Tensor, ""]:
    """Σ over rows of −Σ_v target[position[row], v] · log softmax(weight · x[row])[v].

    The gradients are computed in the same pass, a block of rows at a time, so that no logits are
    kept for the backward pass. All is computed in `target`'s dtype and summed in float32.

    Args:
        x: what is unembedded.
        weight: the unembedding.
        target: probabilities; no gradient flows into them.
        position: which of them each row is to match.
    """
    return _SoftCrossEntropy.apply(x, weight, target, position)


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, position: Tensor) -> Tensor:
        dtype = target.dtype
        low = weight.detach().to(dtype)
        rows = x.detach().to(dtype)
        grad_x = torch.empty_like(rows)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        logits = torch.empty(_ROWS, len(low), dtype=dtype, device=x.device)
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            scores = torch.mm(block, low.T, out=logits[: len(block)])
            wanted = target[position[start : start + _ROWS]]
            total -= torch.linalg.vecdot(scores, wanted).sum(dtype=torch.float32)
            odds = scores.softmax(-1)
            top, at = scores.max(-1)
            # log Σ exp of a row is its largest logit less the logarithm of that one's probability
            total += (top.float() - odds.gather(1, at[:, None])[:, 0].float().log()).sum()
            slope = odds.sub_(wanted)  # of the loss at the logits
            grad_x[start : start + _ROWS] = slope @ low
            if grad_weight is not None:
                grad_weight += slope.T @ block
        ctx.save_for_backward(grad_x, grad_weight)
        ctx.dtypes = x.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        if grad_weight is not None:
            grad_weight = (grad * grad_weight).to(weight_dtype)
        return (grad * grad_x).to(x_dtype), grad_weight, None, None
