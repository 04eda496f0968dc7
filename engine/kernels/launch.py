"""Launch tables: which tiles, warps and stages a kernel runs with, by the model's shapes; nothing is tuned at run time.

Plain numbers, chosen for an H200 (sm_90: 65,536 registers and 227 KB of shared memory per multiprocessor) from what the
compiler reports and what bench/gpu/tune.py measured on one (docs/performance.md). For GPUs with less than half of that
shared memory some tiles are smaller; these were compiled, and are not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
from triton.runtime.errors import OutOfResources

from engine.errors import ModelError

TooLarge = OutOfResources
"""Raised by the first launch of a kernel that takes more of a multiprocessor than the device has."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A tile of prefill attention: `rows` queries x heads against `keys` keys at a time."""

    rows: int
    keys: int
    warps: int
    stages: int

    def queries(self, group: int) -> int:
        """Return how many consecutive positions a tile has if `group` query heads read one key head."""
        return max(self.rows // group, 1)


# By (largest head_dim, bytes of a number). 128 rows, because keys are loaded from L2 once per tile: with 64 rows L2
# could not feed the tensor cores. Two warpgroups hold accumulator and scores in registers without spilling.
_PREFILL = {
    (64, 2): Prefill(128, 64, 8, 3),  # up to 128 registers, 64 KB: two to a multiprocessor, hiding each other's softmax
    (128, 2): Prefill(128, 64, 8, 3),  # up to 202 registers, 128 KB: keys are loaded two steps ahead
    (256, 2): Prefill(128, 32, 8, 3),  # up to 254 registers, 160 KB; 64 keys would spill
    (64, 4): Prefill(64, 32, 4, 2),  # float32 has no tensor cores: small tiles that fit the registers
    (128, 4): Prefill(64, 32, 8, 2),
    (256, 4): Prefill(32, 32, 4, 2),
}
# What does not fit a small GPU otherwise: 80 KB, 67 KB and 68 KB, in registers without spilling.
_SMALL_PREFILL = _PREFILL | {
    (128, 2): Prefill(128, 64, 8, 2),
    (256, 2): Prefill(64, 32, 8, 2),
    (256, 4): Prefill(32, 16, 8, 2),
}


def prefill(head_dim: int, itemsize: int, *, small: bool = False) -> Prefill:
    """Return the tile for heads of head_dim numbers of `itemsize` bytes. small: as is_small says."""
    return _of(_SMALL_PREFILL if small else _PREFILL, head_dim, itemsize)


_Shape = TypeVar("_Shape")


def _of(table: Mapping[tuple[int, int], _Shape], head_dim: int, itemsize: int) -> _Shape:
    for (most, size), shape in table.items():
        if size == itemsize and head_dim <= most:
            return shape
    raise ModelError(f"heads of {head_dim} numbers are more than the GPU's kernels take, {max(table)[0]}")


# Numbers that a program of a memory-bound kernel moves: enough programs for all multiprocessors in decoding, enough
# bytes in flight in each to cover the memory's latency.
ROPE_ELEMENTS = 2048  # of the product of queries, keys and values: 16 heads of 128
GATE_ELEMENTS = 1024  # of a feed-forward layer's output, two inputs each
COPY_ELEMENTS = 2048  # of a block: one of 16 tokens x 128 numbers


def warps(elements: int) -> int:
    """Return the warps of a memory-bound program over so many numbers: 8 per thread, one load of 16 bytes
    in bfloat16.
    """
    return min(max(elements // 256, 1), 16)


@dataclass(frozen=True, slots=True)
class AddProduct:
    """A program of a product of few rows: `columns` of the result, and `depth` numbers of each column's weights per
    warp at a time.
    """

    columns: int
    depth: int
    warps: int
    stages: int


FEW_ROWS = 32  # of such a product: with 64 rows, cuBLAS was faster on an H200
_CORES = 120  # multiprocessors that a matrix should occupy, a little less than a Hopper GPU has: 128 tiles suffice


def row_tile(rows: int) -> int:
    """Return the height of the tile that holds so many rows, at most FEW_ROWS."""
    return 16 if rows <= 16 else FEW_ROWS


def add_product(rows: int, columns: int) -> AddProduct:
    """Return the program for so many rows and `columns` of the result.

    All rows of one tile's height have the same program, so that a row's bits do not depend on how many run beside it.
    """
    tile = row_tile(rows)
    # A program reads all rows from L2, so its columns should not be far fewer than these; but every multiprocessor
    # should have one.
    wide = tile
    while wide > 8 and columns < wide * _CORES:
        wide //= 2
    return AddProduct(wide, 128 if tile == 16 else 64, 4, 4)  # 72 to 98 KB of shared memory


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of decode attention: `lanes` (rows x query heads of one key head) against `keys` keys at a time."""

    lanes: int
    keys: int
    stages: int
    warps: int
    per_core: int
    """Programs that share a multiprocessor; the first keys of one are fetched while another computes."""
    registers: int | None = None
    """The most that a thread may take, if the compiler would otherwise take too many for that."""


@dataclass(frozen=True, slots=True)
class Attn:
    """The tiles of decode attention's two launches: for the rows that share a span, and for a row's own."""

    wide: Tile
    narrow: Tile


# By (largest head_dim, bytes of a number). To be fed at 4.8 TB/s a multiprocessor needs some 40 KB in flight (bandwidth
# times latency, over 132); a pair of key and value tiles holds 8 to 32 KB. Wide: 64 lanes are the minimum of one
# warpgroup's products; with 128 lanes and 8 warps a program would be alone on its multiprocessor. Narrow: 16 lanes are
# the tensor cores' minimum; an item is short and mostly waits, so that small programs hide each other's latency.
_ATTN = {
    # 3 programs of 72 KB and 168 registers; 4 of 37 KB and some 100 registers: with the 96 of five, Triton 3.6 spills
    (64, 2): Attn(Tile(64, 64, 4, 4, 3, 168), Tile(16, 64, 3, 4, 4, 128)),
    # 2 programs of 112 KB and 255 registers; 4 of 53 KB and 80 to 128 registers
    (128, 2): Attn(Tile(64, 64, 3, 4, 2), Tile(16, 32, 4, 4, 4, 128)),
    # 1 program of 160 KB and 230 registers, 4 warps would spill; 2 of 105 KB and 128 registers
    (256, 2): Attn(Tile(64, 32, 4, 8, 1), Tile(16, 32, 4, 8, 2, 128)),
    # float32 has no tensor cores: small tiles that fit the registers
    (64, 4): Attn(Tile(64, 16, 2, 8, 1), Tile(16, 16, 2, 8, 3)),
    (128, 4): Attn(Tile(64, 16, 2, 8, 1), Tile(16, 16, 2, 8, 3)),
    (256, 4): Attn(Tile(32, 16, 2, 8, 1), Tile(16, 16, 2, 8, 3)),
}
_SMALL_ATTN = _ATTN | {(256, 2): Attn(Tile(64, 32, 2, 8, 1), Tile(16, 32, 3, 8, 1, 128))}


# Where a step has the rows for it, keys are read once for twice as many lanes. Alone on its multiprocessor, a program
# of 130 KB and 8 warps takes 17 % less for 32 rows of 4 heads over 8k tokens, and 12 % more for 8 rows over 2k.
_MANY_LANES = {(128, 2): Tile(128, 64, 3, 8, 1)}


def attn(head_dim: int, group: int, itemsize: int, rows: int, *, small: bool = False) -> Attn:
    """Return the tiles for heads of head_dim numbers of `itemsize` bytes, with `group` query heads per key head, in a
    step of so many rows. small: as is_small says.
    """
    shape = _of(_SMALL_ATTN if small else _ATTN, head_dim, itemsize)
    wide, narrow = shape.wide, shape.narrow
    least = 1 << (group - 1).bit_length()  # a tile holds at least one row
    if least > wide.lanes:  # more warps hold it, and no other program fits beside them
        wide = replace(wide, lanes=least, warps=8, per_core=1, registers=None)
        if small:
            wide = replace(wide, keys=max(wide.keys // 2, 16), stages=2)
    if least > narrow.lanes:
        narrow = replace(wide, lanes=least)
    for (most, size), tile in _MANY_LANES.items():
        if _ATTN[most, size] is shape and not small and tile.lanes > wide.lanes and rows * group >= tile.lanes:
            wide = tile
    return Attn(wide, narrow)


@dataclass(frozen=True, slots=True)
class Merge:
    """How a program merges a row and head: `parts` partial results at a time."""

    parts: int
    warps: int


# 8 KB in flight in a program for a head of 128. One warp needs no barrier: of 2 and 4 warps and 8 to 32 parts, none was
# faster for 32 and more rows on an H200; for few rows all are alike.
MERGE = Merge(16, 1)

SHORTEST = 128
"""The least tokens of an item that several rows share; they are so short where a list is."""

OVERLAP = 2
"""Which of attention's launches may begin before the one before them has ended ("programmatic dependent launch").

0: none. 1: that of the narrow items, which fills what that of the wide ones leaves free. 2: that of the merge too,
which then waits for the others' results on the device.
"""


def overlap(device: torch.device, least: int) -> dict[str, bool]:
    """Return the option of a launch that begins early if OVERLAP is at least `least`; nothing for the interpreter, and
    for GPUs before Hopper, which do not have it.
    """
    return {"launch_pdl": True} if least <= OVERLAP and _capability(device) >= (9, 0) else {}


compiled_for = (9, 0)
"""The compute capability that launches on torch's "meta" device are for: kernels are compiled without a GPU."""

_LESS_MEMORY = ((8, 6), (8, 9), (12, 0), (12, 1))
"""The compute capabilities with 99 KB of shared memory for a program: graphics cards from Ampere on, and their siblings
A10, L4 and L40. The others from 8.0 on have 163 or 227 KB (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability").
"""


def is_small(device: torch.device) -> bool:
    """Whether a program may take only 99 KB of shared memory on this device."""
    return _capability(device) in _LESS_MEMORY


def _capability(device: torch.device) -> tuple[int, int]:
    return _capability_of(device) if device.type == "cuda" else compiled_for if device.type == "meta" else (0, 0)


@cache
def _capability_of(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def fill(device: torch.device, per_core: int) -> int:
    """Return how many programs keep a device busy: nearly as many as it runs at once, because twice as many items cost
    more in partial results than a tenth of the device.
    """
    return programs(device, per_core) * 9 // 10


def programs(device: torch.device, per_core: int) -> int:
    """Return how many programs of a persistent kernel a device runs at once; 3 for the interpreter, one
    after the other.
    """
    if device.type != "cuda":
        return 3
    return torch.cuda.get_device_properties(device).multi_processor_count * per_core


# Sampling. At V = 151,936 a row is 594 blocks of 256 tokens: 38 programs of 16 blocks, 16 KB each in float32, so that a
# single row already keeps 38 multiprocessors loading; 256 rows are one pass over 156 MB, about 35 us of HBM.
SUM_BLOCKS, SUM_WARPS = 16, 4
# 1,024 sums, 256 tokens and as many logarithms in float64: about 4 us, latency and no bandwidth.
RACE_DRAWS, RACE_WARPS = 1, 4
# One program passes over a row, at best 64 bytes a cycle from L2, loads two steps ahead: about 15 us. Twice the tokens
# at a time would spill.
CUT_BLOCKS, CUT_WARPS, ROW_STAGES = 16, 16, 3
EDGE_WIDTH = 2048  # candidates at a time, of which few rows have more: 4 to a thread, with three sums in float64
COPY_TOKENS, COPY_WARPS = 4096, 4  # of an edited row, as SUM_BLOCKS
PAIRS, PAIR_WARPS = 512, 4  # (row, token) pairs of a program: scattered, so latency counts, not bandwidth
RANK_TOKENS, RANK_WARPS = 4096, 16  # a row again, as CUT_BLOCKS
