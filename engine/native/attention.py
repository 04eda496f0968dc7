"""Attention in C: it reads block tables as they are; nothing is gathered, padded or masked.

A step is planned once for all layers of one window: a work list as arrays. A prompt's chunk is cut into groups of as
many tokens as read their keys together; each token sees the keys up to its own.

Shapes: T tokens, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from itertools import accumulate, chain

import torch

from engine.attention.cache import KvCache
from engine.attention.plan import by_layer, kinds, slots_of, within_window
from engine.batch import Batch, Chunk, Row
from engine.kv_spans import FIXED_SPAN, Item, cut_items
from engine.models.spec import AttentionSpec
from engine.native.build import LANES, MOST_DIM, MOST_GROUP, Kernels, KvLayer, Work

_SPAN = FIXED_SPAN  # keys of decoding rows' items: short enough that a few rows give items for several threads
_ITEM = 6  # numbers of struct item


def fits(layers: Sequence[AttentionSpec]) -> bool:
    """Whether the kernels support these layers: no soft cap, heads of whole vectors, at most MOST_GROUP queries per key
    head.
    """
    return all(
        layer.softcap is None
        and layer.head_dim % LANES == 0
        and layer.head_dim <= MOST_DIM
        and layer.heads // layer.kv_heads <= MOST_GROUP
        for layer in layers
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """A work list and the buffers for its results, for the layers of one shape and window.

    `tensors` hold what `work` points into.
    """

    work: Work
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class NativePlan:
    """One step: its tokens are the chunks' in order, then one per row."""

    slots: torch.Tensor  # [T], where each token's keys and values go
    lists: tuple[Listed, ...]  # by layer; the last layer's lacks items in which no token is wanted
    wanted: torch.Tensor | None  # [N], the tokens whose results after the last layer are looked at; None for all


class _List:
    """A work list while it is made, in the kernel's format."""

    def __init__(self, tokens: int) -> None:
        self.items: list[int] = []
        self.members: list[int] = []
        self.seen: list[int] = []
        self.blocks: list[int] = []
        self.places: list[list[int]] = [[] for _ in range(tokens)]  # by token

    def add(self, first_block: int, tokens: Sequence[int], seen: Sequence[int], *, steady: bool = False) -> None:
        """Add an item. steady: its tokens' results are the same with any other tokens in it.

        seen: for each token, the first key that it sees and the one behind its last, one pair after the other, counted
        from the first key of the block at `first_block`. A token's items must be added in the order of their keys.
        """
        at = len(self.members)
        self.items += (at, len(tokens), first_block, max(seen[1::2]), at, steady)
        self.members += tokens
        self.seen += seen
        for place, token in enumerate(tokens, at):
            self.places[token].append(place)


class NativeAttention:
    """One model's attention over one cache: `plan` once per step, then `run` once per layer.

    layers: the layers in the kernels' format.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        cache: KvCache,
        kernels: Kernels,
        span: int = _SPAN,
        *,
        deterministic: bool = False,
    ) -> None:
        """Describe the layers to the kernels.

        deterministic: a row's results do not depend on the other rows. Then what several rows may read
        together, up to their cuts, is read in the same way by one row, which costs more.
        """
        self._cache = cache
        self._attention = kernels.attention
        self._queries = kernels.queries
        self._span = span
        self._deterministic = deterministic
        self._kinds = kinds(layers)
        self.layers = [
            KvLayer(
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

    def plan(self, batch: Batch, wanted: Sequence[int] | None = None) -> NativePlan:
        """Plan a step of at least one token; its tokens are the chunks' in order, then one per row.

        wanted: the tokens whose results after the last layer are looked at, in order, with all rows; None for all.
        """
        longest = max(
            [chunk.start + len(chunk.tokens) for chunk in batch.chunks] + [row.position + 1 for row in batch.rows]
        )
        items = cut_items(batch.rows, batch.kv_spans, self._cache.block_size, span=self._span)
        slots = slots_of(batch, self._cache.block_size)
        lists = by_layer(self._kinds, longest, lambda kind: self._listed(batch, items, kind, len(slots)))
        if wanted is None:
            return NativePlan(torch.tensor(slots), lists, None)
        some = frozenset(wanted)
        last = by_layer(self._kinds[-1:], longest, lambda kind: self._listed(batch, items, kind, len(slots), some))
        return NativePlan(torch.tensor(slots), lists[:-1] + last, torch.tensor(wanted, dtype=torch.int64))

    def _listed(
        self, batch: Batch, items: Sequence[Item], kind: AttentionSpec, tokens: int, some: frozenset[int] | None = None
    ) -> Listed:
        """some: of the chunks' tokens, the groups with one of these are enough; None for all."""
        most = self._queries // (kind.heads // kind.kv_heads)  # tokens of an item
        made = _List(tokens)
        self._add_chunks(made, batch.chunks, most, kind.window, some)
        self._add_rows(made, batch.rows, items, most, kind.window, tokens - len(batch.rows))
        first = [0, *accumulate(map(len, made.places))]
        parts = [made.items, made.members, made.seen, made.blocks, first, [*chain(*made.places)]]
        table = torch.frombuffer(array("q", chain(*parts)), dtype=torch.int64)
        begins = [0, *accumulate(map(len, parts))]
        values = torch.empty(len(made.members), kind.heads, kind.head_dim)
        sums = torch.empty(2, len(made.members), kind.heads)
        pointers = [table.data_ptr() + 8 * begin for begin in begins[:-1]]
        return Listed(
            Work(len(made.items) // _ITEM, *pointers, values.data_ptr(), sums[0].data_ptr(), sums[1].data_ptr()),
            (table, values, sums),
        )

    def _add_chunks(
        self, made: _List, chunks: Sequence[Chunk], most: int, window: int | None, some: frozenset[int] | None
    ) -> None:
        """Add groups of consecutive tokens, the last ones first, because their items are the longest.

        some: leave out groups without any of these tokens. The others are the same as if none were left out.
        """
        size = self._cache.block_size
        begin = 0  # the chunk's first token
        for chunk in chunks:
            table = len(made.blocks)
            made.blocks += chunk.blocks
            end = chunk.start + len(chunk.tokens)
            reach = end if window is None else window  # the most keys that a token sees
            for start in reversed(range(chunk.start, end, most)):
                positions = range(start, min(start + most, end))
                first = begin + start - chunk.start
                tokens = range(first, first + len(positions))
                if some is not None and some.isdisjoint(tokens):
                    continue
                skipped = max(start - reach + 1, 0) // size
                bounds = ((max(position - reach + 1, 0), position + 1) for position in positions)
                seen = [bound - skipped * size for bound in chain(*bounds)]
                made.add(table + skipped, tokens, seen)
            begin += len(chunk.tokens)

    def _add_rows(
        self, made: _List, rows: Sequence[Row], items: Sequence[Item], most: int, window: int | None, before: int
    ) -> None:
        """Add the rows' items. before: the number of the chunks' tokens."""
        if window is not None:
            items = within_window(rows, items, self._cache.block_size, window, whole=self._deterministic)
        for item in items:
            table = len(made.blocks)
            made.blocks += item.blocks
            for at in range(0, len(item.rows), most):
                together = item.rows[at : at + most]
                keys = item.hi - item.lo
                if window is None:
                    seen = [0, keys] * len(together)
                else:
                    firsts = [max(rows[row].position - window + 1 - item.lo, 0) for row in together]
                    seen = [bound for first in firsts for bound in (first, keys)]
                steady = self._deterministic and item.hi <= rows[item.rows[0]].cut
                made.add(table, [before + row for row in together], seen, steady=steady)

    def run(self, plan: NativePlan, number: int, qkv: torch.Tensor) -> torch.Tensor:
        """Run one layer, whose keys and values are stored: qkv [T, Q + 2K, D], dense -> [T, Q * D]."""
        layer, work = self.layers[number], plan.lists[number].work
        out = torch.empty(len(qkv), layer.kv_heads * layer.group * layer.dim, dtype=qkv.dtype)
        self._attention(byref(layer), byref(work), qkv.data_ptr(), qkv.stride(0), out.data_ptr(), len(qkv))
        return out
