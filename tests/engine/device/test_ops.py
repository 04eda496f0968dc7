"""A decode step's products that are added to the residual stream: by the kernel, or by torch for the next norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.device.ops import TritonOps
from engine.kernels import launch
from engine.models.linear import Dense

HALF, FLOAT = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("adds", "rows", "dtype", "inside"),
    [
        (True, 1, HALF, True),
        (True, launch.FEW_ROWS, HALF, True),
        (True, launch.FEW_ROWS + 1, HALF, False),
        (True, 1, FLOAT, True),
        (False, 1, HALF, False),
    ],
)
def test_few_rows_are_added_in_place(adds: bool, rows: int, dtype: torch.dtype, inside: bool) -> None:
    torch.manual_seed(0)
    nothing: Any = None
    ops = TritonOps(nothing, nothing, None, nothing, dtype, adds=adds)
    weight, bias = (torch.randn(40, 24) / 24**0.5).to(dtype), torch.randn(40).to(dtype)
    x, h = torch.randn(rows, 40), torch.randn(rows, 24).to(dtype)
    expected = x.double() + h.double() @ weight.double().T + bias.double()
    left = ops.add(x, h, Dense(weight, bias))
    assert (left is None) == inside
    torch.testing.assert_close((x if left is None else x + left).double(), expected, rtol=5e-3, atol=5e-3)


def test_a_product_of_another_kind_is_left_to_itself() -> None:
    nothing: Any = None
    ops = TritonOps(nothing, nothing, None, nothing, HALF, adds=True)
    x, h = torch.zeros(1, 3), torch.ones(1, 3)
    left = ops.add(x, h, lambda given: given * 2)
    assert left is not None
    assert torch.equal(left, h * 2)
