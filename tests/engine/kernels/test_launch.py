"""The launch tables fit a Hopper GPU, a graphics card and the compiler for every model that the engine takes, on paper.

What the compiler makes of some of them is in test_compiled.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch

from engine.errors import ModelError
from engine.kernels import launch

GROUPS = range(1, 129)
HEADS = (*range(2, 64, 2), *range(64, 257, 16))
ITEMSIZES = (2, 4)
SHARED = {False: 227 * 1024, True: 99 * 1024}  # bytes of shared memory that a program can have; of a small GPU
SIZES = pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
MOST = 1 << 20  # numbers of one tile, Triton's limit
LEAST = 16  # of all three sides of a product
WARPS = (1, 2, 4, 8, 16)
DIMS = {dim: max(1 << (dim - 1).bit_length(), LEAST) for dim in HEADS}


def power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def shared(lanes: int, keys: int, stages: int, size: int, small: bool) -> int:
    """Bytes of a program: queries, and keys and values of the steps under way.

    A small GPU has the keys and values of the present step in registers, and moves weights through shared memory.
    """
    return (2 * keys * (stages - small) + lanes) * size + lanes * keys * 2 * small


@SIZES
@pytest.mark.parametrize(("dim", "itemsize"), [*product(HEADS, ITEMSIZES)])
def test_decode_attention(dim: int, itemsize: int, small: bool) -> None:
    groups = range(1, 17) if small and itemsize == 4 else GROUPS  # float32 is a choice for small models
    for group, rows in product(groups, (1, 256)):
        tiles = launch.attn(dim, group, itemsize, rows, small=small)
        for tile in (tiles.wide, tiles.narrow):
            assert power_of_2(tile.lanes)
            assert tile.lanes >= LEAST
            assert tile.lanes // group >= 1, "a tile holds a row at least"
            assert tile.lanes * DIMS[dim] <= MOST
            assert power_of_2(tile.keys)
            assert tile.keys >= LEAST
            assert tile.warps in WARPS
            assert (tile.registers or 0) * 32 * tile.warps * tile.per_core <= 65536
            taken = shared(tile.lanes, tile.keys, tile.stages, DIMS[dim] * itemsize, small)
            assert taken <= SHARED[small]
        assert tiles.narrow.lanes <= tiles.wide.lanes


@SIZES
@pytest.mark.parametrize(("dim", "itemsize"), [*product(HEADS, ITEMSIZES)])
def test_prefill_attention(dim: int, itemsize: int, small: bool) -> None:
    tile = launch.prefill(dim, itemsize, small=small)
    assert power_of_2(tile.rows)
    assert power_of_2(tile.keys)
    assert min(tile.rows, tile.keys) >= LEAST
    assert tile.rows * DIMS[dim] <= MOST
    assert tile.warps in WARPS
    assert shared(tile.rows, tile.keys, tile.stages, DIMS[dim] * itemsize, small) <= SHARED[small]
    for group in GROUPS:
        assert tile.queries(group) >= 1
        assert tile.queries(group) * min(group, tile.rows) <= tile.rows


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[int, int]], None]]:
    """Sets the compute capability of the GPU."""

    def set_to(capability: tuple[int, int]) -> None:
        launch._capability_of.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    yield set_to
    launch._capability_of.cache_clear()


@pytest.mark.parametrize(
    ("capability", "small"), [((8, 0), False), ((8, 6), True), ((8, 9), True), ((9, 0), False), ((12, 0), True)]
)
def test_which_gpus_have_less_memory_for_a_program(
    capability: tuple[int, int], small: bool, of: Callable[[tuple[int, int]], None]
) -> None:
    of(capability)
    assert launch.is_small(torch.device("cuda")) == small
    assert not launch.is_small(torch.device("cpu"))


@pytest.mark.parametrize(("capability", "early"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 0), True)])
def test_launches_overlap_where_the_gpu_can_do_that(
    capability: tuple[int, int], early: bool, of: Callable[[tuple[int, int]], None]
) -> None:
    of(capability)
    assert launch.overlap(torch.device("cuda"), 1) == ({"launch_pdl": True} if early else {})
    assert launch.overlap(torch.device("cpu"), 1) == {}
    assert launch.overlap(torch.device("cuda"), launch.OVERLAP + 1) == {}


def test_heads_that_are_too_large_are_refused() -> None:
    for tiles in (lambda: launch.attn(288, 4, 2, 1), lambda: launch.prefill(288, 2)):
        with pytest.raises(ModelError, match="heads of 288 numbers are more than the GPU's kernels take, 256"):
            tiles()
