"""The part of a step's attention that layers share: index tensors, masks and buffers, prepared once per step.

Layers of one shape and window share one layout. A window removes keys from the chunks and the work list here, so that
the computation need know little of it; in a step whose sequences are all shorter than the window, layers with it use
the layout of layers without one.

Shapes: T tokens, R decoding rows, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from engine.attention.buckets import BucketItems, buckets_of_fixed_shapes, cheapest_buckets
from engine.attention.cache import KvCache
from engine.attention.in_place import lying
from engine.batch import Batch, Chunk, Row
from engine.kv_spans import SPAN, Item, cut_items
from engine.models.spec import AttentionSpec

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A prompt's chunk: tokens begin .. end - 1 of the step are at positions start .. start + end - begin - 1."""

    begin: int
    end: int
    start: int
    first: int
    """The first position that is gathered; it is the first of a block."""
    places: torch.Tensor
    """For KvCache.gather: the blocks of positions `first` .. start + end - begin - 1."""
    window: int | None
    """How many keys a query sees, its own included; None for all."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Work items of about one shape, run as one batch of products: `items` items of `width` rows each."""

    items: int
    width: int
    rows: torch.Tensor | None
    """The indices of the decoding rows, [items * width]; None for all rows in order. Items with fewer rows repeat a
    row, whose partial result is not used.
    """
    places: torch.Tensor
    """For KvCache.gather: the items' blocks, items * span / block_size of them. Shorter items repeat a block, which is
    masked.
    """
    mask: torch.Tensor | None
    """[items, 1, span] float32 with 0 where an item has a key and -inf where not; [items, width * G, span] if its rows
    see different keys; None if all rows see all keys.
    """
    first: int
    """The index of the bucket's first partial result in the buffer."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """One work item whose keys are consecutive in the cache, at `slots`. Its `width` rows see all of them.

    rows, first: as in Bucket.
    """

    width: int
    rows: torch.Tensor | None
    slots: slice
    first: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What the layers of one shape and window share; valid for one step only, including its buffers.

    Partial results are in one buffer: first those of items read in place, then one bucket after the other, each ordered
    [K, items, width]. A partial result covers the G query heads of one row and key head.
    """

    chunks: tuple[ChunkPlan, ...]
    in_place: tuple[InPlace, ...]
    buckets: tuple[Bucket, ...]
    parts: torch.Tensor
    """[P, R * K]: the index of the p-th partial result of each row and key head. Rows with fewer parts refer to the
    last place, which holds nothing (log-sum-exp -inf).
    """
    partial: torch.Tensor
    """[places, G, D]."""
    lse: torch.Tensor
    """[places, G] float32."""

    @property
    def whole(self) -> bool:
        """Whether everything is a single item read in place, for all rows in order, so that nothing must be merged."""
        return len(self.in_place) == 1 and not self.buckets and self.in_place[0].rows is None


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: its tokens are the chunks' in order, then one per row."""

    slots: torch.Tensor  # [T], where each token's keys and values go
    prompt_tokens: int  # the chunks' tokens
    rows: int
    layers: tuple[Layout, ...]  # by layer


class Planner:
    """Plans steps over one cache for a model's layers; decoding rows read items of up to `span` keys.

    deterministic: the shapes in which a row is computed depend on its position and its cut alone.
    in_place: items of at least so many keys are read in place if their blocks are consecutive; if it is None, none are.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        cache: KvCache,
        span: int = SPAN,
        *,
        deterministic: bool = False,
        in_place: int | None = None,
    ) -> None:
        self._cache = cache
        self._span = span
        self._deterministic = deterministic
        self._in_place = in_place
        self._kinds = kinds(layers)

    def plan(self, batch: Batch) -> Plan:
        """Plan a step."""
        size = self._cache.block_size
        slots = slots_of(batch, size)
        prompt_tokens = len(slots) - len(batch.rows)
        longest = max(
            [chunk.start + len(chunk.tokens) for chunk in batch.chunks] + [row.position + 1 for row in batch.rows]
        )
        items = cut_items(batch.rows, batch.kv_spans, size, span=self._span)
        layouts = by_layer(self._kinds, longest, lambda kind: self._layout(batch, items, kind))
        return Plan(torch.tensor(slots), prompt_tokens, len(batch.rows), layouts)

    def _layout(self, batch: Batch, items: Sequence[Item], kind: AttentionSpec) -> Layout:
        chunks: list[ChunkPlan] = []
        begin = 0
        for chunk in batch.chunks:
            chunks.append(self._chunk(chunk, begin, kind))
            begin += len(chunk.tokens)
        if kind.window is not None:
            items = within_window(batch.rows, items, self._cache.block_size, kind.window, whole=self._deterministic)
        in_place, buckets, parts, places = self._decoding(batch.rows, items, kind)
        group = kind.heads // kind.kv_heads
        lse = torch.empty(places + 1, group)
        lse[-1] = -torch.inf
        partial = torch.zeros(places + 1, group, kind.head_dim, dtype=self._cache.dtype)
        return Layout(tuple(chunks), in_place, buckets, parts, partial, lse)

    def _chunk(self, chunk: Chunk, begin: int, kind: AttentionSpec) -> ChunkPlan:
        size = self._cache.block_size
        seen = 0 if kind.window is None else max(chunk.start - kind.window + 1, 0) // size
        needed = -(-(chunk.start + len(chunk.tokens)) // size)
        places = self._cache.places(chunk.blocks[seen:needed], kind.kv_heads)
        return ChunkPlan(begin, begin + len(chunk.tokens), chunk.start, seen * size, places, kind.window)

    def _decoding(
        self, rows: Sequence[Row], items: Sequence[Item], kind: AttentionSpec
    ) -> tuple[tuple[InPlace, ...], tuple[Bucket, ...], torch.Tensor, int]:
        """Return the items read in place, the buckets for the rest, the table of parts, and the number of places."""
        size, kv_heads = self._cache.block_size, kind.kv_heads
        in_place: list[InPlace] = []
        buckets: list[Bucket] = []
        parts: list[list[tuple[int, list[int]]]] = [[] for _ in rows]  # per row: (lo, places by key head)
        first = 0

        def take_places(group: Sequence[Item], width: int) -> int:
            """Allocate places for a group's partial results, note all of them in `parts`, and return the first."""
            nonlocal first
            begin, stride = first, len(group) * width
            for number, item in enumerate(group):
                for offset, row in enumerate(item.rows):
                    place = begin + number * width + offset
                    parts[row].append((item.lo, [place + head * stride for head in range(kv_heads)]))
            first += kv_heads * stride
            return begin

        if self._in_place is not None:
            there, items = lying(rows, items, size, self._in_place, kind.window)
            for item, slots in there:
                width = len(item.rows)
                in_place.append(InPlace(width, _indices(item.rows, len(rows)), slots, take_places([item], width)))
        for group, width, span in self._groups(rows, items):
            blocks = [block for item in group for block in _padded(item.blocks, span)]
            buckets.append(
                Bucket(
                    items=len(group),
                    width=width,
                    rows=_indices([row for item in group for row in _padded(item.rows, width)], len(rows)),
                    places=self._cache.places(blocks, kv_heads),
                    mask=_mask(rows, group, width, span * size, kind),
                    first=take_places(group, width),
                )
            )
        most = max((len(mine) for mine in parts), default=0)
        nothing = (0, [first] * kv_heads)
        table = [sorted(mine) + [nothing] * (most - len(mine)) for mine in parts]
        where = [[place for mine in table for place in mine[p][1]] for p in range(most)]
        sources = torch.tensor(where, dtype=torch.int64).view(most, -1 if most else 0)
        return tuple(in_place), tuple(buckets), sources, first

    def _groups(self, rows: Sequence[Row], items: Sequence[Item]) -> list[BucketItems]:
        if self._deterministic:
            return buckets_of_fixed_shapes(rows, items, self._cache.block_size)
        return cheapest_buckets(items)


def kinds(layers: Sequence[AttentionSpec]) -> list[AttentionSpec]:
    """Return what each layer's layout depends on: layers that differ only in other properties share one."""
    return [replace(layer, scale=1.0, softcap=None) for layer in layers]


def by_layer(kinds: Sequence[AttentionSpec], longest: int, make: Callable[[AttentionSpec], _Made]) -> tuple[_Made, ...]:
    """Return what `make` makes of each layer's kind, made once for all kinds that are the same in this step.

    A window that the longest sequence fits into counts as none.
    """
    made: dict[AttentionSpec, _Made] = {}
    layers: list[_Made] = []
    for kind in kinds:
        wide = kind if kind.window is None or kind.window < longest else replace(kind, window=None)
        if wide not in made:
            made[wide] = make(wide)
        layers.append(made[wide])
    return tuple(layers)


def within_window(
    rows: Sequence[Row], items: Sequence[Item], block_size: int, window: int, *, whole: bool = False
) -> tuple[Item, ...]:
    """Return the work list without blocks that none of an item's rows sees any more, and without rows that see none.

    whole: keep such blocks, because which of them can be dropped depends on the other rows.

    A row at position p sees keys p - window + 1 .. p. What is left of an item may hold a few keys more; the mask hides
    them from the rows that no longer see them.
    """
    kept: list[Item] = []
    slot = 0
    for item in items:
        seeing = tuple([row for row in item.rows if rows[row].position - window + 1 < item.hi])
        if not seeing:
            continue
        begin = max(min([rows[row].position for row in seeing]) - window + 1, item.lo)
        skipped = 0 if whole else (begin - item.lo) // block_size
        kept.append(Item(seeing, item.blocks[skipped:], item.lo + skipped * block_size, item.hi, slot))
        slot += len(seeing)
    return tuple(kept)


def slots_of(batch: Batch, size: int) -> list[int]:
    """Return the cache slots of a step's tokens, in blocks of `size` tokens: the chunks' in order, then one per row."""
    slots = [
        chunk.blocks[at // size] * size + at % size
        for chunk in batch.chunks
        for at in range(chunk.start, chunk.start + len(chunk.tokens))
    ]
    return slots + [row.blocks[row.position // size] * size + row.position % size for row in batch.rows]


def begun_blocks(batch: Batch, size: int) -> list[int]:
    """Return the blocks of `size` tokens whose first slot a step writes and whose last one it does not."""
    ends = [(chunk, chunk.start + len(chunk.tokens)) for chunk in batch.chunks]
    begun = [chunk.blocks[end // size] for chunk, end in ends if end % size and chunk.start <= end - end % size]
    if size > 1:
        begun += [row.blocks[row.position // size] for row in batch.rows if row.position % size == 0]
    return begun


def _indices(rows: Sequence[int], count: int) -> torch.Tensor | None:
    """Return the indices of some of `count` rows as a tensor; None for all of them in order."""
    return None if list(rows) == list(range(count)) else torch.tensor(rows)


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return values + values[-1:] * (length - len(values))


def _mask(
    rows: Sequence[Row], items: Sequence[Item], width: int, span: int, kind: AttentionSpec
) -> torch.Tensor | None:
    lengths = [item.hi - item.lo for item in items]
    firsts = [0] * len(items)  # the first key of the item that is seen: per item or, with a window, per item and row
    seen_by = 1
    if kind.window is not None:
        seen_by = width
        firsts = [rows[row].position - kind.window + 1 - item.lo for item in items for row in _padded(item.rows, width)]
    if max(firsts) <= 0:
        if all(length == span for length in lengths):
            return None
        firsts, seen_by = [0] * len(items), 1
    keys = torch.arange(span)
    hidden = (keys >= torch.tensor(lengths).view(-1, 1, 1)) | (keys < torch.tensor(firsts).view(len(items), seen_by, 1))
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)  # [items, 1 or width, span]
    return mask if seen_by == 1 else mask.repeat_interleave(kind.heads // kind.kv_heads, 1)
