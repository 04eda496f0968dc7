"""The attention of one layer as the engine runs it: a cache of random keys and values, rows on it, and both kernels.

Shapes: R rows, Q query heads, K key heads, D head_dim, S slots of the cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from bench.gpu.cases import Shape
from engine.attention.cache import KvCache
from engine.batch import Batch, Chunk, Draw, Row
from engine.config import EngineConfig
from engine.device.attention import DeviceAttention
from engine.device.tiles import plan_tiles
from engine.kernels import launch
from engine.kernels.attn_items import Work, attn_items
from engine.kernels.merge_parts import merge_parts
from engine.kernels.prefill_attn import prefill_attn
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling
from engine.models.spec import AttentionSpec, kv_bytes_per_token

UNSHARED = 1 << 60
"""A gate that no KV span passes: every row reads its whole past itself."""


def attention_spec(shape: Shape, window: int | None = None, softcap: float | None = None) -> AttentionSpec:
    """Return the shape as the engine's AttentionSpec."""
    return AttentionSpec(shape.heads, shape.kv_heads, shape.dim, shape.dim**-0.5, window, softcap)


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork tree: a span of `blocks` whole blocks, and below it forks, or rows with that many tokens of their own."""

    blocks: int
    below: tuple[Fork | int, ...]


@dataclass(slots=True)
class Tables:
    """It hands out block numbers, in ascending or in shuffled order."""

    blocks: int
    size: int
    shuffle: bool = False
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.blocks - 1, -1, -1))
        if self.shuffle:
            random.Random(self.blocks).shuffle(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Return `count` free blocks, now taken."""
        return tuple([self._free.pop() for _ in range(count)])

    def rows(self, fork: Fork | int, before: tuple[int, ...] = (), *, cut: bool = False) -> list[Row]:
        """Return the rows of a tree behind some blocks, left to right; with a `cut` where their shared blocks end."""
        if isinstance(fork, int):
            table = before + self.take(-(-fork // self.size))
            position = len(before) * self.size + fork - 1
            draw = Draw(0, 0, position + 1, Sampling())
            return [Row(0, 0, position, table, draw, cut=len(before) * self.size if cut else 0)]
        table = before + self.take(fork.blocks)
        return [row for one in fork.below for row in self.rows(one, table, cut=cut)]


@dataclass(frozen=True, slots=True)
class Planned:
    """A work list on the device, with the tensors that its launches write to."""

    work: Work
    positions: torch.Tensor
    partial: torch.Tensor
    lse: torch.Tensor
    out: torch.Tensor
    wide: bool
    """Whether the list may have wide items."""

    def poison(self) -> None:
        """Fill everything that is to be written with NaN."""
        for written in (self.partial, self.lse, self.out):
            written.fill_(torch.nan)


def forked(size: int, n: int, prefix: int, own: int) -> tuple[Fork, int]:
    """Return the fork of n rows behind a prefix, in blocks of `size` tokens, and the number of blocks it needs.

    The prefix's whole blocks are shared; each row has its own copy of the rest of the prefix.
    """
    left = prefix % size + own
    return Fork(prefix // size, (left,) * n), prefix // size + n * -(-left // size)


class Layer:
    """A layer's cache of random numbers, and attention over it."""

    def __init__(self, spec: AttentionSpec, blocks: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self.size = size
        self.cache = KvCache((spec,), blocks, size, dtype, device)
        self.cache.pools[0].normal_()
        self._attention = DeviceAttention((spec,), self.cache, 1, 1)

    @property
    def gate(self) -> int:
        """The engine's own gate for this cache, in tokens."""
        token = kv_bytes_per_token((self.spec,), self.cache.dtype.itemsize)
        return EngineConfig("").gate(self.cache.device.type, token)

    @property
    def kv(self) -> torch.Tensor:
        """Keys and values, [2K, S, D]."""
        return self.cache.view(0)

    def queries(self, rows: int) -> torch.Tensor:
        """Return random queries [R, Q, D]."""
        shape = rows, self.spec.heads, self.spec.head_dim
        return torch.randn(shape, dtype=self.cache.dtype, device=self.cache.device)

    def plan(self, rows: Sequence[Row], gate: int) -> Planned:
        """Return the work list of some rows, as the engine plans it."""
        device = self.cache.device
        batch = Batch(rows=tuple(rows), kv_spans=plan_kv_spans(rows, self.size, gate=gate))
        arrays = self._attention.arrays(batch, len(rows))
        there = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        there["slots"] = torch.empty(0, dtype=torch.int64, device=device)
        there["row_positions"] = torch.tensor([row.position for row in rows], dtype=torch.int32, device=device)
        planned = self._attention.plan(there, 0)
        wide = len(rows) > 1 or any(row.cut > 0 for row in rows)
        return self.room(planned.work[0], planned.positions, len(rows), wide=wide)

    def room(self, work: Work, positions: torch.Tensor, rows: int, *, wide: bool = True) -> Planned:
        """Return a work list, which may have wide items, with tensors for its results."""
        places, device = len(work.part_slots), self.cache.device
        partial = torch.empty(places, self.spec.heads, self.spec.head_dim, device=device)
        out = torch.empty(rows, self.spec.heads * self.spec.head_dim, dtype=self.cache.dtype, device=device)
        return Planned(work, positions, partial, torch.empty(places, self.spec.heads, device=device), out, wide)

    def attend(self, q: torch.Tensor, planned: Planned, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Make all launches and return the result, [R, Q * D]."""
        spec = self.spec
        attn_items(
            q,
            self.kv,
            planned.work,
            planned.positions,
            planned.partial,
            planned.lse,
            block_size=self.size,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            wide=planned.wide,
        )
        merge_parts(planned.partial, planned.lse, planned.work, planned.out, sinks)
        return planned.out

    def slots(self, row: Row) -> torch.Tensor:
        """Return the cache's slots of a row's positions, [position + 1]."""
        blocks = torch.tensor(row.blocks, device=self.cache.device)
        at = torch.arange(row.position + 1, device=self.cache.device)
        return blocks[at // self.size] * self.size + at % self.size


class Prompt:
    """One prompt in one chunk over a layer's cache; `row`: as the row of its last token."""

    def __init__(self, layer: Layer, length: int, shape: launch.Prefill) -> None:
        """The layer must have the blocks for it, and `shape` is the tile that it is computed with."""
        blocks, device = -(-length // layer.size), layer.cache.device
        table = Tables(blocks, layer.size).take(blocks)
        group = layer.spec.heads // layer.spec.kv_heads
        tiles = plan_tiles([Chunk(0, (0,) * length, 0, table)], shape.queries(group), layer.size)
        self.row = Row(0, 0, length - 1, table, None)
        self._layer = layer
        self._shape = shape
        self._tiles, self._blocks = torch.from_numpy(tiles.tiles).to(device), torch.from_numpy(tiles.blocks).to(device)
        self._count = torch.tensor([len(tiles.tiles)], dtype=torch.int32, device=device)

    def attend(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Launch the attention of queries q [T, Q, D], into out [T, Q * D]."""
        layer = self._layer
        prefill_attn(
            q,
            layer.kv,
            self._tiles,
            self._count,
            self._blocks,
            out,
            block_size=layer.size,
            scale=layer.spec.scale,
            shape=self._shape,
        )
