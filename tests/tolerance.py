"""How far two ways of adding up the same floats may lie apart.

Another processor, batch size or place in memory makes another order of additions, and so other last
bits. A sum of n terms is off by at most n·eps times the sum of their sizes, whatever the order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rounding(*values: Tensor, length: int) -> float:
    """The bound for `values`, each found by adding up `length` products of about their size.

    Through layers the lengths add up: `length` is width times layers there.
    """
    eps = max(torch.finfo(value.dtype).eps for value in values)
    return length * eps * max(float(value.detach().abs().max()) for value in values)


def close(found: Tensor, expected: Tensor, *, length: int) -> None:
    """Assert that both are the same up to the order of additions."""
    bound = rounding(found, expected, length=length)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound, check_dtype=False)
