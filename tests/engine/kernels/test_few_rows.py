"""Products of few rows, and what is fused with them, against float64."""

from __future__ import annotations

from itertools import product as combinations

import pytest
import torch

from engine.kernels import launch, reference
from engine.kernels.few_rows import product
from engine.kernels.launch import FewRows

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
TILES = pytest.mark.parametrize("shape", [None, FewRows(8, 16, 4, 3), FewRows(16, 32, 2, 2)], ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def close(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(result.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@BOTH
@TILES
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (24, 64), (33, 100), (70, 531)])
def test_product(dtype: torch.dtype, shape: FewRows | None, rows: int, columns: int, depth: int) -> None:
    torch.manual_seed(rows + columns)
    x, weight = random(rows, depth, dtype=dtype), random(columns, depth, dtype=dtype) / depth**0.5
    out = product(x, weight, torch.empty(rows, columns, dtype=dtype), shape=shape)
    close(out, x.double() @ weight.double().T, dtype)


@BOTH
@TILES
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 24, 64), (5, 33, 100)])
@pytest.mark.parametrize(("normed", "gated", "adds", "biased"), [*combinations([False, True], repeat=4)])
def test_what_is_fused(
    dtype: torch.dtype,
    shape: FewRows | None,
    rows: int,
    columns: int,
    depth: int,
    normed: bool,
    gated: bool,
    adds: bool,
    biased: bool,
) -> None:
    torch.manual_seed(rows)
    height = 2 * columns if gated else columns
    x = random(rows, depth, dtype=torch.float32 if normed else dtype)
    weight, bias = random(height, depth, dtype=dtype) / depth**0.5, random(height, dtype=dtype) if biased else None
    norm = torch.rand(depth) + 0.5 if normed else None
    out = random(rows, columns, dtype=torch.float32 if adds else dtype)
    expected = x.double() if norm is None else reference.rms_norm(x.double(), norm.double(), 1e-5)
    expected = expected @ weight.double().T
    if bias is not None:
        expected += bias.double()
    if gated:
        expected = reference.silu_mul(expected)
    if adds:
        expected += out.double()
    assert product(x, weight, out, bias=bias, norm=norm, eps=1e-5, gated=gated, adds=adds, shape=shape) is out
    close(out, expected, dtype)


@BOTH
@pytest.mark.parametrize("parts", [2, 3, 8])
@pytest.mark.parametrize("adds", [False, True])
def test_a_depth_that_programs_share(dtype: torch.dtype, parts: int, adds: bool) -> None:
    """Also if the depth is too small for all of them."""
    torch.manual_seed(parts)
    for depth in (16, 100, 256):
        x, weight = random(3, depth, dtype=dtype), random(40, depth, dtype=dtype) / depth**0.5
        bias, out = random(40, dtype=dtype), random(3, 40, dtype=torch.float32 if adds else dtype)
        expected = x.double() @ weight.double().T + bias.double() + (out.double() if adds else 0.0)
        product(x, weight, out, bias=bias, adds=adds, shape=FewRows(16, 16, 2, 2, parts))
        close(out, expected, dtype)


def test_rows_that_lie_apart() -> None:
    wide, weight, target = torch.randn(4, 60), torch.randn(20, 40), torch.randn(4, 30)
    rest = target[:, 20:].clone()
    out = product(wide[:, 3:43], weight, target[:, :20])
    torch.testing.assert_close(out, wide[:, 3:43] @ weight.T)
    assert torch.equal(target[:, 20:], rest)


@pytest.mark.parametrize("normed", [False, True])
def test_a_row_does_not_depend_on_the_others_of_its_tile(normed: bool) -> None:
    x, weight, norm = torch.randn(16, 300), torch.randn(40, 300), torch.rand(300) if normed else None
    together = product(x, weight, torch.empty(16, 40), norm=norm, eps=1e-6)
    for rows in (1, 7):
        fewer = product(x[:rows], weight, torch.empty(rows, 40), norm=norm, eps=1e-6)
        torch.testing.assert_close(fewer, together[:rows], rtol=1e-6, atol=1e-5)  # the interpreter's BLAS is not exact


@pytest.mark.parametrize(("columns", "depth"), [(1024, 2048), (1024, 3072), (4096, 1024), (28672, 4096), (4096, 14336)])
def test_the_table_fits_a_multiprocessor(columns: int, depth: int) -> None:
    for rows, gated, normed in combinations(range(1, launch.MOST_ROWS + 1), [False, True], [False, True]):
        shape, tile = launch.few_rows(rows, columns, depth, gated=gated, normed=normed), launch.few_rows_tile(rows)
        assert rows <= tile
        weights = shape.columns * (2 if gated else 1) * 2
        step = shape.warps * shape.depth * (tile * (4 if normed else 2) + weights + (4 if normed else 0))
        assert step * (shape.stages - 1) <= 227 * 1024
        assert shape == launch.few_rows(tile, columns, depth, gated=gated, normed=normed)
