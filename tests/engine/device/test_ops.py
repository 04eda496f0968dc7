"""A decode step's products with what is around them, each with its kernel and by torch."""

from __future__ import annotations

import pytest
import torch

from engine.device.ops import FewRows
from engine.kernels import launch, reference
from engine.models.linear import Dense, Linear

CLOSE = {torch.float32: 1e-5, torch.float16: 5e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("most", [0, 32])
@pytest.mark.parametrize("adds", [False, True])
def test_products(dtype: torch.dtype, most: int, adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "JOINED_ROWS", most)
    torch.manual_seed(0)
    rows, hidden, inner, eps = 3, 40, 24, 1e-5
    ops, norm = FewRows(dtype), torch.rand(hidden) + 0.5
    x, added = torch.randn(rows, hidden), torch.randn(rows, hidden).to(dtype) if adds else None
    total = x.double() if added is None else x.double() + added.double()
    normed = reference.rms_norm(total, norm.double(), eps)

    def dense(height: int, depth: int) -> tuple[Linear, torch.Tensor, torch.Tensor]:
        weight, bias = (torch.randn(height, depth) / depth**0.5).to(dtype), torch.randn(height).to(dtype)
        return Dense(weight, bias), weight.double().T, bias.double()

    def close(result: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(result.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])

    linear, weight, bias = dense(inner, hidden)
    mine = x.clone()
    result = ops.normed(mine, added, norm, eps, linear)
    assert result.dtype == dtype
    close(result, normed @ weight + bias)
    close(mine, total)
    linear, weight, bias = dense(2 * inner, hidden)
    mine = x.clone()
    h = ops.gated(mine, added, norm, eps, linear)
    assert h.dtype == dtype
    close(h, reference.silu_mul(normed @ weight + bias))
    close(mine, total)
    linear, weight, bias = dense(hidden, inner)
    mine = x.clone()
    left = ops.add(mine, h, linear)
    assert (left is None) == (most > 0)
    close(mine if left is None else mine + left, x.double() + h.double() @ weight + bias)
