"""Norm with residual, gate and block copies against the plain reference."""

from __future__ import annotations

import random

import pytest
import torch

from engine.kernels import reference
from engine.kernels.activation import silu_mul
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.norms import rms_norm

CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3}
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)


@BOTH
@pytest.mark.parametrize("size", [1, 16, 576, 5000, 16384])
@pytest.mark.parametrize("adds", [False, True])
def test_norm_with_residual(dtype: torch.dtype, size: int, adds: bool) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(3, size) * 5, torch.randn(size)
    added = torch.randn(3, size).to(dtype) if adds else None
    total = x if added is None else x + added.float()
    expected = reference.rms_norm(total.double(), weight.double(), 1e-5)
    out = rms_norm(x, added, weight, 1e-5, torch.empty(3, size, dtype=dtype))
    torch.testing.assert_close(out.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    assert torch.equal(x, total)


def test_norm_of_rows_that_lie_apart() -> None:
    wide = torch.randn(4, 40)
    x, weight, added = wide[:, :24], torch.ones(24), torch.randn(4, 30)[:, 3:27]
    rest, total = wide[:, 24:].clone(), x + added
    out = rms_norm(x, added, weight, 1e-6, torch.empty(4, 64)[:, :24])
    torch.testing.assert_close(out, reference.rms_norm(total, weight, 1e-6))
    assert torch.equal(x, total)
    assert torch.equal(wide[:, 24:], rest)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = torch.randn(5, 300), torch.randn(300)
    together = rms_norm(x, None, weight, 1e-5, torch.empty(5, 300))
    alone = rms_norm(x[3:4], None, weight, 1e-5, torch.empty(1, 300))
    assert torch.equal(together[3:4], alone)


@BOTH
@pytest.mark.parametrize("size", [1, 100, 1024, 3000])
def test_gate(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    gate_up = (torch.randn(3, 2 * size) * 4).to(dtype)
    out = silu_mul(gate_up, torch.empty(3, size, dtype=dtype))
    expected = reference.silu_mul(gate_up.double())
    torch.testing.assert_close(out.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # e^200 is infinite, and meant to be
def test_gate_of_large_numbers_is_a_number() -> None:
    out = silu_mul(torch.tensor([[-200.0, 200.0, 3.0, 3.0]]), torch.empty(1, 2))
    torch.testing.assert_close(out, torch.tensor([[0.0, 600.0]]))


@BOTH
@pytest.mark.parametrize(("block_size", "head_dim"), [(4, 16), (16, 20), (16, 256)])
def test_copies_of_blocks(dtype: torch.dtype, block_size: int, head_dim: int) -> None:
    pool = torch.randn(2, 6, 10 * block_size, head_dim).to(dtype)
    names = random.Random(block_size).sample(range(10), 8)
    pairs = [(names[0], names[4]), (names[0], names[5]), (names[2], names[6]), (names[3], names[7])]
    expected = pool.clone()
    reference.copy_blocks(expected, pairs, block_size)
    copy_blocks(pool, torch.tensor(pairs, dtype=torch.int32), block_size)
    assert torch.equal(pool, expected)
