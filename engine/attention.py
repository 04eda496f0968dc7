"""Attention over a paged KV cache, on the CPU: prefill by tiles, decode by a work list.

The part of a step that does not depend on the layer (index tensors, masks, buffers) is planned once; the
layers then run the same few tensor operations each. The meaning of every operation stands in
kernels/reference.py, and the tests compare the two.

Shapes: T tokens, R decoding rows, Q query heads, K key (and value) heads, G = Q / K, D head_dim.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Batch, Chunk, Item, Row
from engine.models.spec import ModelSpec

_TILE = 64  # queries of a prompt that are scored together: their scores stay in the cores' caches
_LAUNCH = 6000  # what one more bucket of items costs a layer, in the units of `_cost`
_BUCKET_KEYS = 1 << 14  # keys gathered at once at the most: what is copied should fit into the last cache


class KvCache:
    """Keys and values of all layers: one tensor [layers, 2K, blocks * block_size, D], keys' heads first.

    A block is block_size consecutive slots of every head. A head's slots lie together, so that a span's
    keys, gathered block by block, are one matrix. Begins as zeros, because what is masked out is
    multiplied by 0 and must be a number; they take no memory until something else is written.
    """

    def __init__(self, spec: ModelSpec, blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.heads = spec.kv_heads
        shape = (spec.layers, 2 * spec.kv_heads, blocks * block_size, spec.head_dim)
        # Anonymous memory is zero and comes page by page; torch.zeros would write, and so take, all of it at once.
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
        self.data = torch.frombuffer(memory, dtype=dtype).view(shape)
        self._by_block = self.data.view(spec.layers, 2 * spec.kv_heads, blocks, block_size * spec.head_dim)
        self._layers = [(self.data[layer], self._by_block[layer].flatten(0, 1)) for layer in range(spec.layers)]
        self._first_of_head = torch.arange(2 * spec.kv_heads).unsqueeze(1) * blocks  # [2K, 1], in rows of one block

    def store(self, layer: int, kv: torch.Tensor, slots: torch.Tensor) -> None:
        """Write kv [T, 2K, D] to slots [T]."""
        self._layers[layer][0].index_copy_(1, slots, kv.transpose(0, 1))

    def places(self, blocks: Sequence[int]) -> torch.Tensor:
        """What `gather` takes for these N blocks: where each head has each of them, [2K * N]."""
        return (self._first_of_head + torch.tensor(blocks)).flatten()

    def gather(self, layer: int, places: torch.Tensor) -> torch.Tensor:
        """Copy out N blocks one behind the other: [2K, N * block_size, D]."""
        # As rows of one block and head, which is three times as fast as along the blocks of all heads.
        return self._layers[layer][1].index_select(0, places).view(2 * self.heads, -1, self.data.shape[-1])

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of all layers. Targets are distinct, and no source is a target."""
        sources, targets = torch.tensor(pairs).unbind(1)
        self._by_block.index_copy_(2, targets, self._by_block.index_select(2, sources))


@dataclass(frozen=True, slots=True)
class _ChunkPlan:
    """A prompt's chunk: tokens begin .. end - 1 of the step stand at positions start .. start + end - begin - 1."""

    begin: int
    end: int
    start: int
    places: torch.Tensor  # for KvCache.gather: the blocks of positions 0 .. start + end - begin - 1


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Work items of about one shape, run as one batch of products: `items` items of `width` rows each.

    rows: which decoding rows, [items * width]; None stands for all rows in order. Narrower items repeat a
    row (its partial is not used), shorter ones a block (masked). mask: [items, 1, span] float32 with 0 where
    an item has a key and -inf where not; None where all have. first: of the bucket's partials in the buffer.
    """

    items: int
    width: int
    rows: torch.Tensor | None
    places: torch.Tensor  # for KvCache.gather: the items' blocks, items * span / block_size of them
    mask: torch.Tensor | None
    first: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What all layers of one step share; good for that step only, its buffers included.

    Partials lie in one buffer, a bucket after the other, each ordered [K, items, width]; a partial is the G
    query heads of one row and key head. parts [P, R * K]: where the p-th part of each row and key head
    lies; rows of fewer parts name the last place, which holds nothing (log-sum-exp -inf).
    """

    slots: torch.Tensor  # [T], where each token's keys and values go
    prompt_tokens: int  # the first tokens of the step are the chunks', the rest the rows'
    chunks: tuple[_ChunkPlan, ...]
    rows: int
    buckets: tuple[_Bucket, ...]
    parts: torch.Tensor
    partial: torch.Tensor  # [places, G, D]
    lse: torch.Tensor  # [places, G] float32


class Attention:
    """One model's attention over one cache. `plan` once a step, then the result is called once a layer."""

    def __init__(self, spec: ModelSpec, cache: KvCache) -> None:
        self._cache = cache
        self._kv_heads = spec.kv_heads
        self._group = spec.heads // spec.kv_heads
        self._head_dim = spec.head_dim
        self._scale = 1 / math.sqrt(spec.head_dim)
        self._nothing = torch.empty(1, 1, 1, dtype=cache.data.dtype)
        self._later = torch.full((_TILE, _TILE), -torch.inf, dtype=cache.data.dtype).triu(1)  # [query, key]

    def plan(self, batch: Batch) -> Plan:
        """Lay out a step whose tokens are the chunks' in order, then one per row."""
        size = self._cache.block_size
        slots: list[int] = []
        chunks: list[_ChunkPlan] = []
        for chunk in batch.chunks:
            begin = len(slots)
            slots += _chunk_slots(chunk, size)
            needed = -(-(chunk.start + len(chunk.tokens)) // size)
            chunks.append(_ChunkPlan(begin, len(slots), chunk.start, self._cache.places(chunk.blocks[:needed])))
        prompt_tokens = len(slots)
        slots += [row.blocks[row.position // size] * size + row.position % size for row in batch.rows]
        buckets, parts, places = self._plan_items(batch.rows, batch.items)
        lse = torch.empty(places + 1, self._group)
        lse[-1] = -torch.inf
        return Plan(
            slots=torch.tensor(slots),
            prompt_tokens=prompt_tokens,
            chunks=tuple(chunks),
            rows=len(batch.rows),
            buckets=buckets,
            parts=parts,
            partial=torch.zeros(places + 1, self._group, self._head_dim, dtype=self._cache.data.dtype),
            lse=lse,
        )

    def run(self, plan: Plan, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """One layer: store kv [T, 2K, D], then attend with q [T, Q, D]; gives [T, Q * D]."""
        self._cache.store(layer, kv, plan.slots)
        if not plan.chunks:
            return self._decode(plan, layer, q)
        out = torch.empty(len(q), q.shape[1] * q.shape[2], dtype=q.dtype)
        for chunk in plan.chunks:
            self._prefill(chunk, layer, q[chunk.begin : chunk.end], out[chunk.begin : chunk.end])
        if plan.rows:
            out[plan.prompt_tokens :] = self._decode(plan, layer, q[plan.prompt_tokens :])
        return out

    def _prefill(self, chunk: _ChunkPlan, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        """Causal attention of a chunk's queries [T, Q, D] over all its keys so far, into out [T, Q * D].

        Tiles end at fixed positions of the sequence, wherever the chunk begins.
        """
        k, v = self._cache.gather(layer, chunk.places).chunk(2)  # [K, N * block_size, D] each
        k = k.transpose(1, 2)
        q = q.view(len(q), self._kv_heads, self._group, -1)  # [T, K, G, D]
        out = out.view(q.shape)
        at, end = chunk.start, chunk.start + len(q)
        while at < end:
            stop = min(at - at % _TILE + _TILE, end)
            here = slice(at - chunk.start, stop - chunk.start)
            tile = q[here].permute(1, 2, 0, 3).reshape(self._kv_heads, -1, self._head_dim)  # [K, G * t, D]
            scores = torch.baddbmm(self._nothing, tile, k[:, :, :stop], beta=0, alpha=self._scale)  # [K, G * t, stop]
            diagonal = scores.view(self._kv_heads, self._group, stop - at, stop)[..., at:]  # [K, G, t, t]
            diagonal += self._later[: stop - at, : stop - at]
            part = torch.bmm(torch.softmax(scores, -1), v[:, :stop])  # [K, G * t, D]
            out[here] = part.view(self._kv_heads, self._group, stop - at, -1).permute(2, 0, 1, 3)
            at = stop

    def _decode(self, plan: Plan, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of the rows' queries [R, Q, D] by the work list; gives [R, Q * D]."""
        by_head = q.view(len(q), self._kv_heads, self._group, -1).transpose(0, 1).contiguous()  # [K, R, G, D]
        for bucket in plan.buckets:
            self._attn_items(plan, bucket, layer, by_head)
        return self._merge_parts(plan)

    def _attn_items(self, plan: Plan, bucket: _Bucket, layer: int, q: torch.Tensor) -> None:
        """Attend with a bucket's rows over their spans; partials and log-sum-exps go into the plan's buffers."""
        products = self._kv_heads * bucket.items  # B: one per key head and item
        kv = self._cache.gather(layer, bucket.places).view(2 * products, -1, self._head_dim)  # [2B, span, D]
        k, v = kv[:products], kv[products:]
        rows = q if bucket.rows is None else q.index_select(1, bucket.rows)
        rows = rows.view(products, bucket.width * self._group, self._head_dim)  # [B, width * G, D]
        scores = torch.baddbmm(self._nothing, rows, k.transpose(1, 2), beta=0, alpha=self._scale).float()
        if bucket.mask is not None:
            scores.view(self._kv_heads, bucket.items, *scores.shape[1:]).add_(bucket.mask)
        weights = torch.softmax(scores, -1)  # [B, width * G, span]
        count = products * bucket.width
        place = slice(bucket.first, bucket.first + count)
        # Of the likeliest key, weight = exp(score - lse): two maxima instead of another pass of exponentials.
        lse = plan.lse[place].view(products, -1)  # [B, width * G]
        torch.sub(scores.amax(-1), weights.amax(-1).log_(), out=lse)
        partial = plan.partial[place].view(products, -1, self._head_dim)
        torch.bmm(weights.to(v.dtype), v, out=partial)

    def _merge_parts(self, plan: Plan) -> torch.Tensor:
        """Join every row's partials in the order of `lo`; gives [R, Q * D]."""
        count = len(plan.parts)  # P
        flat = plan.parts.view(-1)
        partial = plan.partial.index_select(0, flat)  # [P * R * K, G, D]
        if count > 1:
            shares = plan.lse.index_select(0, flat).view(count, -1, 1).softmax(0)  # [P, R * K * G, 1]
            parts = partial.view(count, -1, self._head_dim)  # [P, R * K * G, D]
            merged = parts[0] * shares[0]
            for p in range(1, count):
                merged.addcmul_(parts[p], shares[p])
            partial = merged.to(partial.dtype)
        return partial.view(plan.rows, -1)

    def _plan_items(self, rows: Sequence[Row], items: Sequence[Item]) -> tuple[tuple[_Bucket, ...], torch.Tensor, int]:
        """Batch items of about one shape; gives the buckets, the table of parts, and the number of places."""
        size = self._cache.block_size
        buckets: list[_Bucket] = []
        parts: list[list[tuple[int, list[int]]]] = [[] for _ in rows]  # per row: (lo, places by key head)
        first = 0
        for group in _alike(items):
            width = max(len(item.rows) for item in group)
            span = max(len(item.blocks) for item in group)
            stride = len(group) * width
            for number, item in enumerate(group):
                for offset, row in enumerate(item.rows):
                    place = first + number * width + offset
                    parts[row].append((item.lo, [place + head * stride for head in range(self._kv_heads)]))
            padded_rows = [row for item in group for row in _padded(item.rows, width)]
            buckets.append(
                _Bucket(
                    items=len(group),
                    width=width,
                    rows=None if padded_rows == list(range(len(rows))) else torch.tensor(padded_rows),
                    places=self._cache.places([block for item in group for block in _padded(item.blocks, span)]),
                    mask=_mask([item.hi - item.lo for item in group], span * size),
                    first=first,
                )
            )
            first += self._kv_heads * stride
        most = max((len(mine) for mine in parts), default=0)
        nothing = (0, [first] * self._kv_heads)
        table = [sorted(mine) + [nothing] * (most - len(mine)) for mine in parts]
        where = [[place for mine in table for place in mine[p][1]] for p in range(most)]
        return tuple(buckets), torch.tensor(where, dtype=torch.int64).view(most, -1 if most else 0), first


def _chunk_slots(chunk: Chunk, size: int) -> list[int]:
    end = chunk.start + len(chunk.tokens)
    return [chunk.blocks[p // size] * size + p % size for p in range(chunk.start, end)]


def _alike(items: Sequence[Item]) -> list[list[Item]]:
    """Group items so that padding each to its group's widest and longest, and launching the groups, costs least.

    Shapes are put in order, widest and then longest first, and the order is cut where the sum of costs is
    lowest: best[i] is the cost of the first i shapes, cut[i] where their last group begins.
    """
    by_shape: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        by_shape.setdefault((len(item.rows), len(item.blocks)), []).append(item)
    shapes = sorted(by_shape, reverse=True)
    keys = [max(item.hi - item.lo for item in by_shape[shape]) for shape in shapes]
    best, cut = [0], [0]
    for end in range(1, len(shapes) + 1):
        longest = count = 0
        options = []
        for begin in range(end - 1, -1, -1):
            longest = max(longest, keys[begin])
            count += len(by_shape[shapes[begin]])
            options.append((best[begin] + _LAUNCH + count * _cost(shapes[begin][0], longest), begin))
        cost, begin = min(options)
        best.append(cost)
        cut.append(begin)
    groups: list[list[Item]] = []
    end = len(shapes)
    while end:
        group = [item for shape in shapes[cut[end] : end] for item in by_shape[shape]]
        at_once = max(_BUCKET_KEYS // max(keys[cut[end] : end]), 1)
        groups += [group[i : i + at_once] for i in range(0, len(group), at_once)]
        end = cut[end]
    return groups


def _cost(rows: int, keys: int) -> int:
    """What an item costs a layer, in units of about 10 ns (measured: reading a key costs as much as scoring 4 rows)."""
    return keys * (4 + rows)


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return values + values[-1:] * (length - len(values))


def _mask(lengths: Sequence[int], span: int) -> torch.Tensor | None:
    if all(length == span for length in lengths):
        return None
    beyond = torch.arange(span) >= torch.tensor(lengths).unsqueeze(1)  # [items, span]
    return torch.zeros(beyond.shape).masked_fill_(beyond, -torch.inf).unsqueeze(1)
