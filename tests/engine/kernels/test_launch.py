"""The launch tables fit a Hopper GPU and the compiler for every model that the engine takes, on paper.

What the compiler makes of some of them is in test_compiled.py.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

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
    for group, rows in product(GROUPS, (1, 256)):
        tiles = launch.attn(dim, group, itemsize, rows)
        for tile in (tiles.wide, tiles.narrow):
            assert power_of_2(tile.lanes)
            assert tile.lanes >= LEAST
            assert tile.lanes // group >= 1, "a tile holds a row at least"
            assert tile.lanes * DIMS[dim] <= MOST
            assert power_of_2(tile.keys)
            assert tile.keys >= LEAST
            assert tile.warps in WARPS
            assert (tile.registers or 0) * 32 * tile.warps * tile.per_core <= 65536
            taken = shared(tile.lanes, tile.keys, tile.stages, DIMS[dim] * itemsize)
            assert taken <= SHARED
        assert tiles.narrow.lanes <= tiles.wide.lanes


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


@pytest.mark.parametrize(("capability", "early"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True)])
def test_launches_overlap_where_the_gpu_can_do_that(
    capability: tuple[int, int], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch._has_early_launches.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert launch.overlap(torch.device("cuda"), 1) == ({"launch_pdl": True} if early else {})
    launch._has_early_launches.cache_clear()
    assert launch.overlap(torch.device("cpu"), 1) == {}
    assert launch.overlap(torch.device("cuda"), launch.OVERLAP + 1) == {}


def test_heads_that_are_too_large_are_refused() -> None:
    for tiles in (lambda: launch.attn(288, 4, 2, 1), lambda: launch.prefill(288, 2)):
        with pytest.raises(ModelError, match="heads of 288 numbers are more than the GPU's kernels take, 256"):
            tiles()
