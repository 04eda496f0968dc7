"""Decode attention over a work list: the rows of an item read one span of the KV cache, once for all of them.

An item's tile holds the query heads of all its rows that read one key head, side by side (lane l is head l % G of the
item's row l // G). It iterates over the span's keys in order with a running maximum and sum (the softmax of
FlashAttention, in base 2). The list's wide items and its narrow ones have a launch each, with tiles of their own, and
both take the list's length from the device: a recorded launch serves any list up to the tensors' sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.softcap import capped

_LOG2E = tl.constexpr(math.log2(math.e))
_LN2 = tl.constexpr(math.log(2))


@triton.jit
def _blocks(blocks, at, length, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """The blocks of keys at .. at + KEYS - 1, as far as there are so many; `at` is a multiple of KEYS."""
    key = tl.arange(0, KEYS)
    index = at // BLOCK_SIZE + key // BLOCK_SIZE if KEYS % BLOCK_SIZE == 0 else (at + key) // BLOCK_SIZE
    return tl.load(blocks + index, mask=at + key < length, other=0)


@triton.jit
def _attn_item(
    q,
    keys,
    values,
    blocks,
    rows,
    positions,
    partial,
    lse,
    head,
    row,
    count,
    lo,
    length,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One item and key head: every pointer but q and positions stands where the item's own begin.

    Keys are counted from the item's first, which is a block's first too.
    """
    UNIT: tl.constexpr = (SCALE if SOFTCAP == 0 else 1) * _LOG2E  # of a score, in powers of 2
    lane = tl.arange(0, LANES)
    # Told by sums: remainders would be kept in registers for the end, too many where a group is no power of 2.
    member = lane // GROUP
    there = lane < count * GROUP
    # The item names its first row: a row by itself does not wait for `rows`.
    row = tl.load(rows + member, mask=there & (count > 1), other=row)
    place = head * GROUP + lane - member * GROUP
    dim = tl.arange(0, DIMS)
    wanted = there[:, None] & (dim < DIM)[None, :]
    query_at = (row.to(tl.int64) * HEADS + place) * DIM
    queries = tl.load(q + query_at[:, None] + dim[None, :], mask=wanted, other=0.0)

    begin = 0
    if WINDOW > 0:
        first = tl.load(positions + row, mask=there, other=2147483647) - (WINDOW - 1) - lo  # that a lane sees
        begin = tl.maximum(tl.min(first, 0), 0) // KEYS * KEYS

    highest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    mixed = tl.zeros([LANES, DIMS], tl.float32)
    # The next keys' blocks are read a turn ahead: were they read in their own turn, the compiler would give half of the
    # stages to them, and no key would be on its way while others are computed with.
    block = _blocks(blocks, begin, length, BLOCK_SIZE, KEYS)
    for at in tl.range(begin, length, KEYS, num_stages=STAGES):
        key = at + tl.arange(0, KEYS)
        written = key < length
        loaded = written[:, None]
        if DIM != DIMS:
            loaded = loaded & (dim < DIM)[None, :]
        inside = tl.arange(0, KEYS) % BLOCK_SIZE if KEYS % BLOCK_SIZE == 0 else key % BLOCK_SIZE
        offset = (block * BLOCK_SIZE + inside).to(tl.int64)[:, None] * DIM + dim[None, :]
        k = tl.load(keys + offset, mask=loaded, other=0.0)
        block = _blocks(blocks, at + KEYS, length, BLOCK_SIZE, KEYS)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        if SOFTCAP > 0.0:
            scores = capped(scores, SCALE, SOFTCAP)
        seen = written[None, :]
        if WINDOW > 0:
            seen = seen & (key[None, :] >= first[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        risen = tl.maximum(highest, tl.max(scores, 1) * UNIT)
        base = risen
        if WINDOW > 0:
            base = tl.where(risen > float("-inf"), risen, 0.0)  # a lane may have seen no key yet
        weights = tl.exp2(scores * UNIT - base[:, None])
        kept = tl.exp2(highest - base)
        total = total * kept + tl.sum(weights, 1)
        v = tl.load(values + offset, mask=loaded, other=0.0)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * kept[:, None], input_precision="ieee")
        highest = risen

    if WINDOW > 0:
        total = tl.where(highest > float("-inf"), total, 1.0)  # none at all: nothing, and a log-sum-exp of -inf
    result_at = (head * GROUP + lane + member * (HEADS - GROUP)).to(tl.int64)
    tl.store(lse + result_at, (highest + tl.log2(total)) * _LN2, mask=there)
    tl.store(partial + result_at[:, None] * DIM + dim[None, :], mixed / total[:, None], mask=wanted)


@triton.jit
def _fields(items, number, listed):
    """An item's first, count, table, lo, hi, slot and row, if it is listed."""
    item = items + number * 8
    first = tl.load(item, mask=listed, other=0)
    count = tl.load(item + 1, mask=listed, other=0)
    table = tl.load(item + 2, mask=listed, other=0)
    lo = tl.load(item + 3, mask=listed, other=0)
    hi = tl.load(item + 4, mask=listed, other=0)
    slot = tl.load(item + 5, mask=listed, other=0)
    row = tl.load(item + 6, mask=listed, other=0)
    return first, count, table, lo, hi, slot, row


@triton.jit
def _attn_items(
    q,
    kv,
    items,
    rows,
    blocks,
    counts,
    positions,
    partial,
    lse,
    kv_stride,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    FOLLOWED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The wide items, or the narrow ones, which may be BEHIND wide ones.

    FOLLOWED: the next launch may begin meanwhile. OVERLAP: this one may have begun while the one before still runs; it
    needs nothing of that, but must not end first.
    """
    if FOLLOWED:
        tl.extra.cuda.gdc_launch_dependents()
    GROUP: tl.constexpr = HEADS // KV_HEADS
    begin = tl.load(counts) * KV_HEADS if BEHIND else 0
    end = begin + tl.load(counts if WIDE else counts + 1) * KV_HEADS
    start = begin + tl.program_id(0)
    # The first item is read while the list's length is not known yet, where that leads to no place outside of the list;
    # each further one while the one before is computed.
    listed = start < end if BEHIND else start >= 0
    first, count, table, lo, hi, slot, row = _fields(items, start // KV_HEADS, listed)
    for unit in tl.range(start, end, tl.num_programs(0), num_stages=1):
        following = unit + tl.num_programs(0)
        first_, count_, table_, lo_, hi_, slot_, row_ = _fields(items, following // KV_HEADS, following < end)
        head = unit % KV_HEADS
        place = slot.to(tl.int64)
        _attn_item(
            q,
            kv + head.to(tl.int64) * kv_stride,
            kv + (head + KV_HEADS).to(tl.int64) * kv_stride,
            blocks + table,
            rows + first,
            positions,
            partial + place * (HEADS * DIM),
            lse + place * HEADS,
            head,
            row,
            count,
            lo,
            hi - lo,
            SCALE,
            SOFTCAP,
            WINDOW,
            HEADS,
            GROUP,
            DIM,
            DIMS,
            BLOCK_SIZE,
            LANES,
            KEYS,
            STAGES,
        )
        first, count, table, lo, hi, slot, row = first_, count_, table_, lo_, hi_, slot_, row_
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


class Work(NamedTuple):
    """A work list (engine/device/worklist.py) on the device, int32; tensors may be longer than the list.

    counts [3]: how many wide items, narrow items and rows of the step are valid.
    """

    items: torch.Tensor
    rows: torch.Tensor
    blocks: torch.Tensor
    parts: torch.Tensor
    part_slots: torch.Tensor
    counts: torch.Tensor


def attn_items(
    q: torch.Tensor,
    kv: torch.Tensor,
    work: Work,
    positions: torch.Tensor,
    partial: torch.Tensor,
    lse: torch.Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    wide: bool = True,
) -> None:
    """Compute partial attention of each item's rows over the item's span; defined by reference.attn_items.

    q [R, Q, D], contiguous; kv [2K, S, D], one layer of the cache, keys' heads first; positions int32 [R], used with a
    window. Written: partial fp32 [slots, Q, D], normalized over each span, and lse fp32 [slots, Q], natural logarithms;
    a row that sees nothing of its span through the window gets zeros and -inf. The list must be made for this launch's
    tiles. wide: whether it may have wide items.
    """
    heads, dim = q.shape[1:]
    kv_heads = len(kv) // 2
    tiles = launch.attn(dim, heads // kv_heads, q.element_size(), len(q), small=launch.is_small(q.device))
    for is_wide in (True, False) if wide else (False,):
        tile = tiles.wide if is_wide else tiles.narrow
        behind = wide and not is_wide
        overlap = launch.overlap(q.device, 1) if behind else {}
        grid = (min(launch.programs(q.device, tile.per_core), len(work.items) * kv_heads),)
        _attn_items[grid](
            q,
            kv,
            work.items,
            work.rows,
            work.blocks,
            work.counts,
            positions,
            partial,
            lse,
            kv.stride(0),
            SCALE=scale,
            SOFTCAP=softcap or 0.0,
            WINDOW=window or 0,
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=dim,
            DIMS=max(triton.next_power_of_2(dim), 16),
            BLOCK_SIZE=block_size,
            WIDE=is_wide,
            BEHIND=behind,
            LANES=tile.lanes,
            KEYS=tile.keys,
            STAGES=tile.stages,
            FOLLOWED=bool(launch.overlap(q.device, 1 if is_wide else 2)),
            OVERLAP=bool(overlap),
            num_warps=tile.warps,
            maxnreg=tile.registers,
            **overlap,
        )
