"""The blockwise soft cross-entropy is the plain one, in value and in gradients."""

from __future__ import annotations

import pytest
import torch
from switchsd.decoding.training import soft_loss
from switchsd.decoding.training.soft_loss import soft_cross_entropy
from torch import Tensor


def dense(x: Tensor, weight: Tensor, target: Tensor, position: Tensor) -> Tensor:
    return -(target[position] * (x @ weight.T).log_softmax(-1)).sum()


def example(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 12, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(40, 12, generator=generator, dtype=dtype, requires_grad=True)
    target = torch.randn(30, 40, generator=generator, dtype=dtype).mul(2).softmax(-1)
    position = torch.randint(30, (rows,), generator=generator)
    return x, weight, target, position


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 8, 21])  # a block is 8 here: below, at and beyond one
def test_equals_autograd_through_the_whole_softmax(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int
) -> None:
    monkeypatch.setattr(soft_loss, "_ROWS", 8)
    x, weight, target, position = example(rows, dtype)
    scale = 0.37  # the gradient that comes from above is not 1
    expected = dense(x, weight, target, position)
    wanted = torch.autograd.grad(scale * expected, (x, weight))
    got = soft_cross_entropy(x, weight, target, position)
    found = torch.autograd.grad(scale * got, (x, weight))
    torch.testing.assert_close(got.to(dtype), expected, atol=1e-4, rtol=1e-5)
    for gradient, truth in zip(found, wanted, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, truth, atol=2e-5, rtol=1e-5)


def test_no_rows_no_loss_and_no_gradient() -> None:
    x, weight, target, _ = example(3, torch.float32)
    loss = soft_cross_entropy(x[:0], weight, target, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()


def test_low_precision_targets_set_the_precision_of_the_products() -> None:
    x, weight, target, position = example(64, torch.float32)
    expected = dense(x, weight, target, position)
    low = soft_cross_entropy(x, weight, target.bfloat16(), position)
    low.backward()
    assert x.grad is not None
    assert x.grad.dtype == weight.grad.dtype == torch.float32  # type: ignore[union-attr]
    torch.testing.assert_close(low, expected, atol=0, rtol=0.02)
