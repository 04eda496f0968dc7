"""Attention of decoding rows in C: by block tables as they are, nothing gathered, filled up or masked.

A step is laid out once, for all layers of one window: a work list as arrays. Prompts' chunks are torch's matter, whose
products over tiles are large enough.

Shapes: T tokens, R decoding rows, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.attention.plan import Plan, by_layer, kinds, slots_of, within_window
from engine.batch import Batch, Item, Row, cut_items
from engine.models.spec import AttentionSpec
from engine.native.build import LANES, MOST_DIM, MOST_QUERIES, Kernels, Layer, Parts

_SPAN = 256  # keys of an item: short enough that few rows' items are enough work for several threads


def fits(layers: Sequence[AttentionSpec]) -> bool:
    """Whether the kernels know these layers: no soft cap, heads of whole vectors, no more queries to a key than fit."""
    return all(
        layer.softcap is None
        and layer.head_dim % LANES == 0
        and layer.head_dim <= MOST_DIM
        and layer.heads // layer.kv_heads <= MOST_QUERIES
        for layer in layers
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A work list and the room for its results, for the layers of one shape and window. `tensors` are what the pointers
    in `list_at` and `parts` point into."""

    rows: int
    items: int
    list_at: tuple[int, ...]  # items, members, seen, blocks, first_place, places
    parts: Parts
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class NativePlan:
    """One step: its tokens are the chunks' in order, then one per row. chunks: torch's part, where there is one."""

    slots: torch.Tensor  # [T], where each token's keys and values go
    prompt_tokens: int
    chunks: Plan | None
    work: tuple[_Work, ...]  # by layer; empty without rows


class NativeAttention:
    """One model's attention over one cache. `plan` once a step, then `run` once a layer.

    emulated: the processor has no products in the cache's type.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        cache: KvCache,
        kernels: Kernels,
        span: int = _SPAN,
        *,
        emulated: bool = False,
    ) -> None:
        self._cache = cache
        self._decode = kernels.decode
        self._span = span
        self._torch = Attention(layers, cache, wide=emulated)
        self._kinds = kinds(layers)
        self._layers = [
            Layer(
                cache.view(number).data_ptr(),
                cache.view(number).shape[1],
                cache.block_size,
                spec.kv_heads,
                spec.heads // spec.kv_heads,
                spec.head_dim,
                spec.scale,
            )
            for number, spec in enumerate(layers)
        ]
        self._specs = tuple(layers)

    def plan(self, batch: Batch) -> NativePlan:
        """Lay out a step whose tokens are the chunks' in order, then one per row; there is at least one."""
        slots = slots_of(batch, self._cache.block_size)
        chunks = self._torch.plan(replace(batch, rows=(), stretches=())) if batch.chunks else None
        work: tuple[_Work, ...] = ()
        if batch.rows:
            longest = max(row.position for row in batch.rows) + 1
            items = cut_items(batch.rows, batch.stretches, self._cache.block_size, span=self._span)
            work = by_layer(self._kinds, longest, lambda kind: self._work(batch.rows, items, kind))
        return NativePlan(torch.tensor(slots), len(slots) - len(batch.rows), chunks, work)

    def _work(self, rows: Sequence[Row], items: Sequence[Item], kind: AttentionSpec) -> _Work:
        size, window = self._cache.block_size, kind.window
        if window is not None:
            items = within_window(rows, items, size, window)
        most = max(MOST_QUERIES // (kind.heads // kind.kv_heads), 1)  # rows of an item
        listed: list[int] = []
        members: list[int] = []
        seen: list[int] = []
        blocks: list[int] = []
        places: list[list[tuple[int, int]]] = [[] for _ in rows]  # by row: (lo, place)
        for item in items:
            first_block = len(blocks)
            blocks += item.blocks
            for at in range(0, len(item.rows), most):
                together = item.rows[at : at + most]
                listed += (len(members), len(together), first_block, item.hi - item.lo, len(members))
                for row in together:
                    places[row].append((item.lo, len(members)))
                    members.append(row)
                    seen.append(max(rows[row].position - window + 1 - item.lo, 0) if window is not None else 0)
        order = [[place for _, place in sorted(mine)] for mine in places]
        first = [0, *accumulate(map(len, order))]
        parts = [listed, members, seen, blocks, first, [place for mine in order for place in mine]]
        table = torch.tensor([number for part in parts for number in part])
        begins = [0, *accumulate(map(len, parts))]
        values = torch.empty(len(members), kind.heads, kind.head_dim)
        sums = torch.empty(2, len(members), kind.heads)
        return _Work(
            len(rows),
            len(listed) // 5,
            tuple([table.data_ptr() + 8 * begin for begin in begins[:-1]]),
            Parts(values.data_ptr(), sums[0].data_ptr(), sums[1].data_ptr()),
            (table, values, sums),
        )

    def run(self, plan: NativePlan, number: int, qkv: torch.Tensor) -> torch.Tensor:
        """One layer, whose keys and values are stored: qkv [T, Q + 2K, D], dense -> [T, Q * D]."""
        spec = self._specs[number]
        out = torch.empty(len(qkv), spec.heads * spec.head_dim, dtype=qkv.dtype)
        if plan.chunks is not None:
            self._torch.prefill(plan.chunks, number, qkv[:, : spec.heads], out)
        if plan.work:
            work, skipped, width = plan.work[number], plan.prompt_tokens, qkv.element_size()
            items, *rest = work.list_at
            self._decode(
                byref(self._layers[number]),
                qkv.data_ptr() + skipped * qkv.stride(0) * width,
                qkv.stride(0),
                out.data_ptr() + skipped * out.stride(0) * width,
                work.rows,
                items,
                work.items,
                *rest,
                byref(work.parts),
            )
        return out
