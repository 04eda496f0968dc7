"""Products of few rows that are added to a residual stream, against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import launch
from engine.kernels.add_product import add_product
from engine.kernels.launch import AddProduct

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3}
TILES = pytest.mark.parametrize("shape", [None, AddProduct(8, 16, 4, 3), AddProduct(16, 32, 2, 2)], ids=str)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
@TILES
@pytest.mark.parametrize("rows", [1, 16, 17, 32])
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (24, 64), (33, 100), (70, 531)])
def test_products(
    dtype: torch.dtype, biased: bool, shape: AddProduct | None, rows: int, columns: int, depth: int
) -> None:
    torch.manual_seed(rows + columns)
    x, weight = torch.randn(rows, depth).to(dtype), (torch.randn(columns, depth) / depth**0.5).to(dtype)
    bias = torch.randn(columns).to(dtype) if biased else None
    out = torch.randn(rows, columns)
    expected = out.double() + x.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    assert add_product(x, weight, bias, out, shape) is out
    torch.testing.assert_close(out.double(), expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_rows_that_lie_apart() -> None:
    wide, weight, target = torch.randn(4, 60), torch.randn(20, 40), torch.randn(4, 30)
    before = target.clone()
    add_product(wide[:, 3:43], weight, None, target[:, :20])
    torch.testing.assert_close(target[:, :20], before[:, :20] + wide[:, 3:43] @ weight.T)
    assert torch.equal(target[:, 20:], before[:, 20:])


def test_a_row_does_not_depend_on_the_others_of_its_tile() -> None:
    x, weight = torch.randn(16, 300), torch.randn(40, 300)
    together = add_product(x, weight, None, torch.zeros(16, 40))
    for rows in (1, 7):
        fewer = add_product(x[:rows], weight, None, torch.zeros(rows, 40))
        torch.testing.assert_close(fewer, together[:rows], rtol=1e-6, atol=1e-5)  # the interpreter's BLAS is not exact


@pytest.mark.parametrize("columns", [1, 576, 1024, 4096, 28672])
def test_the_table_fits_a_multiprocessor(columns: int) -> None:
    for rows in range(1, launch.FEW_ROWS + 1):
        shape, tile = launch.add_product(rows, columns), launch.row_tile(rows)
        assert rows <= tile
        assert shape.warps * shape.depth * (tile + shape.columns) * 2 * (shape.stages - 1) <= 227 * 1024
        assert shape == launch.add_product(tile, columns)
