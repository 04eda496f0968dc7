"""Attention over the paged cache by Triton's kernels: the counterpart of engine/attention/compute.py, in two halves.

What a step's attention needs is planned on the host, as arrays that go to the device with the step's others; layers
then run over their views there. Layers of one kind share them.

Shapes: T tokens, R decoding rows, Q query heads, K key (and value) heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.cache import KvCache
from engine.batch import Batch, KvSpan, Row
from engine.device.frame import Arrays
from engine.device.tiles import plan_tiles
from engine.device.worklist import Tables, Tiling, newest, work_list
from engine.kernels import launch
from engine.kernels.attn_items import Work, attn_items
from engine.kernels.merge_parts import merge_parts
from engine.kernels.prefill_attn import prefill_attn
from engine.kernels.qkv_rope_store import qkv_rope_store, store
from engine.kv_spans import FIXED_SPAN, SPAN, span_tokens
from engine.models.ops import Heads
from engine.models.spec import AttentionSpec


class Rotations(NamedTuple):
    """Each position's rotation of each pair of a head: cosines, sines [positions, D / 2] float32."""

    cosines: torch.Tensor
    sines: torch.Tensor


class Tiles(NamedTuple):
    """A step's tiles on the device, as prefill_attn takes them: the tiles, how many of them are valid, and the chunks'
    block tables.
    """

    tiles: torch.Tensor
    number: torch.Tensor
    tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """One step on the device, whose tokens are the chunks' in order, then one per row."""

    slots: torch.Tensor
    """The tokens' cache slots, [T]."""
    prompt_tokens: int
    positions: torch.Tensor
    """The rows' positions, [R] int32."""
    work: tuple[Work, ...]
    """By kind of layer; empty in a step without rows."""
    tiles: tuple[Tiles, ...]
    """By kind of layer; empty in a step without chunks."""


class DeviceAttention:
    """One model's attention over one cache: `arrays` and `plan` once per step, then `run` or `run_fused`
    once per layer.
    """

    def __init__(
        self, layers: Sequence[AttentionSpec], cache: KvCache, rows: int, places: int, *, cuts: bool = False
    ) -> None:
        """rows: the most rows of a step without chunks. places: the number of partial results for which memory is kept;
        a step with more allocates its own. cuts: whether rows have a `cut`, so that a row by itself has wide items too.

        Raises ModelError for heads that the kernels have no tiles for.
        """
        self._layers = tuple(layers)
        self._cache = cache
        self._tables = Tables()
        self._cuts = cuts
        kinds = [replace(layer, scale=1.0, softcap=None) for layer in layers]
        self._kinds = tuple(dict.fromkeys(kinds))
        self._kind_of = [self._kinds.index(kind) for kind in kinds]
        self._queries = {kind: _queries(kind, cache) for kind in self._kinds}
        sizes = max(layer.heads * layer.head_dim for layer in layers), max(layer.heads for layer in layers)
        self._partial, self._lse = (torch.empty(places * size, device=cache.device) for size in sizes)
        # Padding rows are never written but are computed with, so they must hold numbers.
        self._out = torch.zeros(rows * sizes[0], dtype=cache.dtype, device=cache.device)

    # On the host

    def arrays(self, batch: Batch, rows: int) -> Arrays:
        """Return the arrays that the host plans for a step of so many rows, the batch's own and the padding."""
        tables = self._tables.step(batch.rows)
        longest = max([row.position for row in batch.rows], default=0) + 1
        planned: dict[AttentionSpec, Arrays] = {}
        for kind in self._kinds:
            # If no row is past the window, the list is the same as for layers without one.
            window = kind.window if kind.window is not None and kind.window < longest else None
            seen = replace(kind, window=window)
            planned[kind] = planned[seen] if seen in planned else self._planned(batch, rows, kind, window, tables)
            planned[seen] = planned[kind]
        return _numbered([planned[kind] for kind in self._kinds])

    def longest(self, rows: int, places: int) -> Arrays:
        """Return arrays as long as those of a step of so many rows and partial results can be."""
        blocks = places * -(-FIXED_SPAN // self._cache.block_size)
        shapes = {"items": (places, 8), "rows": (places,), "blocks": (blocks,), "parts": (rows + 1,)}
        shapes |= {"part_slots": (places,), "counts": (3,)}
        return _numbered([{name: np.zeros(shape, dtype=np.int32) for name, shape in shapes.items()}] * len(self._kinds))

    def newest(self, arrays: Arrays) -> list[NDArray[np.intp]] | None:
        """Return, by work list and row, the item that the row's newest position is in: what changes when all rows move
        on, until one begins another span of FIXED_SPAN tokens. None if a window moves on with them.

        arrays: of a step without chunks, with its "row_positions".
        """
        if any(kind.window is not None for kind in self._kinds):
            return None
        positions = arrays["row_positions"]
        return [
            newest(arrays[f"items {number}"], arrays[f"rows {number}"], positions) for number in range(len(self._kinds))
        ]

    def _planned(
        self, batch: Batch, rows: int, kind: AttentionSpec, window: int | None, tables: Sequence[NDArray[np.int32]]
    ) -> Arrays:
        """Return a kind's work list, limited to the keys that its rows see through the window, and its tiles."""
        size = self._cache.block_size
        arrays: Arrays = {}
        if batch.rows:
            kv_spans = batch.kv_spans
            if window is not None:
                kv_spans = within_window(batch.rows, kv_spans, size, window)
            work = work_list(batch.rows, kv_spans, tables, size, _tiling(kind, self._cache, rows))
            arrays |= {"items": work.items, "rows": work.rows, "blocks": work.blocks}
            arrays |= {"parts": work.parts, "part_slots": work.part_slots, "counts": work.counts}
        if batch.chunks:
            cut = plan_tiles(batch.chunks, self._queries[kind], size)
            arrays |= {"tiles": cut.tiles, "number": np.array([len(cut.tiles)], dtype=np.int32), "tables": cut.blocks}
        return arrays

    # On the device

    def plan(self, there: Mapping[str, torch.Tensor], prompt_tokens: int) -> Plan:
        """Return the plan of a step whose arrays are on the device, with its tokens' "slots" and its
        "row_positions".
        """
        kinds = list(_by_kind(there, len(self._kinds)))
        work = tuple([Work(*(kind[name] for name in Work._fields)) for kind in kinds if "items" in kind])
        tiles = tuple([Tiles(*(kind[name] for name in Tiles._fields)) for kind in kinds if "tiles" in kind])
        return Plan(there["slots"], prompt_tokens, there["row_positions"], work, tiles)

    def run(
        self, plan: Plan, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run one layer: store kv [T, 2K, D], then attend with q [T, Q, D]; return [T, Q * D], valid until the next
        layer.

        sinks [Q]: a score per head that takes its share of the softmax and contributes no value.
        """
        store(kv, plan.slots, self._cache.view(layer))
        return self._attend(plan, layer, q.contiguous(), sinks)

    def run_fused(
        self,
        plan: Plan,
        layer: int,
        qkv: torch.Tensor,
        heads: Heads,
        rotations: Rotations | None,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Run one layer: norm and rotate the heads of qkv [T, (Q + 2K) * D], store, attend; return [T, Q * D], like
        `run`.

        rotations: if it is None, heads are not rotated. positions: the tokens', [T].
        """
        spec = self._layers[layer]
        q = qkv.new_empty(len(qkv), spec.heads, spec.head_dim)
        cosines, sines = rotations or (None, None)
        qkv_rope_store(
            qkv,
            cosines,
            sines,
            positions,
            plan.slots,
            self._cache.view(layer),
            q,
            q_norm=heads.q_norm,
            k_norm=heads.k_norm,
            eps=heads.eps,
        )
        return self._attend(plan, layer, q, None)

    def _attend(self, plan: Plan, layer: int, q: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
        spec, kv, kind = self._layers[layer], self._cache.view(layer), self._kind_of[layer]
        size = self._cache.block_size
        width = spec.heads * spec.head_dim
        out = q.new_empty(len(q), width) if plan.tiles else self._out[: len(q) * width].view(len(q), width)
        if plan.tiles:
            prefill_attn(
                q,
                kv,
                *plan.tiles[kind],
                out,
                block_size=size,
                scale=spec.scale,
                window=spec.window,
                softcap=spec.softcap,
                sinks=sinks,
            )
        if plan.work:
            work, rows = plan.work[kind], slice(plan.prompt_tokens, None)
            partial, lse = self._room(len(work.part_slots), spec)
            attn_items(
                q[rows],
                kv,
                work,
                plan.positions,
                partial,
                lse,
                block_size=size,
                scale=spec.scale,
                window=spec.window,
                softcap=spec.softcap,
                wide=self._cuts or len(q) - plan.prompt_tokens > 1,
            )
            merge_parts(partial, lse, work, out[rows], sinks)
        return out

    def _room(self, places: int, spec: AttentionSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the buffers for partial results, [places, Q, D], and for their log-sum-exps, [places, Q]."""
        sums = places * spec.heads
        numbers = sums * spec.head_dim
        if numbers > len(self._partial) or sums > len(self._lse):
            return self._partial.new_empty(places, spec.heads, spec.head_dim), self._lse.new_empty(places, spec.heads)
        return self._partial[:numbers].view(places, spec.heads, -1), self._lse[:sums].view(places, -1)


def _queries(kind: AttentionSpec, cache: KvCache) -> int:
    tile = launch.prefill(kind.head_dim, cache.dtype.itemsize, small=launch.is_small(cache.device))
    return tile.queries(kind.heads // kind.kv_heads)


def _tiling(kind: AttentionSpec, cache: KvCache, rows: int) -> Tiling:
    group = kind.heads // kind.kv_heads
    shape = launch.attn(kind.head_dim, group, cache.dtype.itemsize, rows, small=launch.is_small(cache.device))
    fill = launch.fill(cache.device, shape.wide.per_core) // kind.kv_heads  # an item is one program per key head
    return Tiling(group, shape.wide.lanes, shape.narrow.lanes, fill, FIXED_SPAN, launch.SHORTEST)


def within_window(rows: Sequence[Row], kv_spans: Sequence[KvSpan], block_size: int, window: int) -> tuple[KvSpan, ...]:
    """Return the KV spans without whole SPANs that none of their rows sees any more, and without rows that see none.

    A row at position p sees keys p - window + 1 .. p. What is left is cut into items at the same places as the whole
    span: a row's results do not depend on how far the other rows see.
    """
    span = span_tokens(SPAN, block_size)
    kept: list[KvSpan] = []
    for members, lo, hi in kv_spans:
        seeing = tuple([row for row in members if rows[row].position - window + 1 < hi])
        if seeing:
            first = min([rows[row].position for row in seeing]) - window + 1
            kept.append(KvSpan(seeing, max(lo, first // span * span), hi))
    return tuple(kept)


def _numbered(kinds: Sequence[Arrays]) -> Arrays:
    return {f"{name} {number}": array for number, arrays in enumerate(kinds) for name, array in arrays.items()}


def _by_kind(there: Mapping[str, torch.Tensor], count: int) -> Iterator[dict[str, torch.Tensor]]:
    for number in range(count):
        end = f" {number}"
        yield {name.removesuffix(end): tensor for name, tensor in there.items() if name.endswith(end)}
