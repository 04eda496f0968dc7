"""The launch tables fit a Hopper GPU and the compiler for every model that the engine takes, on paper.

What the compiler makes of some of them is in test_compiled.py.
"""

from __future__ import annotations

from itertools import product

import pytest

from engine.errors import ModelError
from engine.kernels import launch

GROUPS = range(1, 129)
HEADS = (*range(2, 64, 2), *range(64, 257, 16))
ITEMSIZES = (2, 4)
SHARED = 227 * 1024  # bytes of a multiprocessor's shared memory that programs can have
MOST = 1 << 20  # numbers of one tile, Triton's limit
LEAST = 16  # of all three sides of a product
WARPS = (1, 2, 4, 8, 16)
DIMS = {dim: max(1 << (dim - 1).bit_length(), LEAST) for dim in HEADS}


def power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def shared(lanes: int, keys: int, stages: int, size: int) -> int:
    """Bytes of a program in 16-bit numbers: queries, and keys and values of the steps under way."""
    return (2 * keys * stages + lanes) * size


@pytest.mark.parametrize(("dim", "itemsize"), [*product(HEADS, ITEMSIZES)])
def test_decode_attention(dim: int, itemsize: int) -> None:
    for group in GROUPS:
        tiles = launch.attn(dim, group, itemsize)
        for lanes in (tiles.wide, tiles.narrow):
            assert power_of_2(lanes)
            assert lanes >= LEAST
            assert lanes // group >= 1, "a tile holds a row at least"
            assert lanes * DIMS[dim] <= MOST
        assert tiles.narrow <= tiles.wide
        assert power_of_2(tiles.keys)
        assert tiles.keys >= LEAST
        assert tiles.warps in WARPS
        taken = shared(tiles.wide, tiles.keys, tiles.stages, DIMS[dim] * itemsize)
        assert taken <= SHARED
        if group <= 16:  # wider tiles, of very large groups, may be alone on a multiprocessor
            assert taken * tiles.per_core <= SHARED


@pytest.mark.parametrize(("dim", "itemsize"), [*product(HEADS, ITEMSIZES)])
def test_prefill_attention(dim: int, itemsize: int) -> None:
    tile = launch.prefill(dim, itemsize)
    assert power_of_2(tile.rows)
    assert power_of_2(tile.keys)
    assert min(tile.rows, tile.keys) >= LEAST
    assert tile.rows * DIMS[dim] <= MOST
    assert tile.warps in WARPS
    assert shared(tile.rows, tile.keys, tile.stages, DIMS[dim] * itemsize) <= SHARED
    for group in GROUPS:
        assert tile.queries(group) >= 1
        assert tile.queries(group) * min(group, tile.rows) <= tile.rows


def test_heads_that_are_too_large_are_refused() -> None:
    for tiles in (lambda: launch.attn(288, 4, 2), lambda: launch.prefill(288, 2)):
        with pytest.raises(ModelError, match="heads of 288 numbers are more than the GPU's kernels take, 256"):
            tiles()
