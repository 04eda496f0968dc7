"""Attention of prompts' chunks over the paged cache: causal, any number of chunks of any lengths in one launch.

A program computes one tile: the queries of some consecutive positions of a sequence, for the query heads that read one
key head, all packed as rows of one matrix (row r is head r % P of query r // P). It iterates in order over the keys
that any of them sees, and keeps a running maximum and sum (the softmax of FlashAttention, in base 2).

Tiles begin at multiples of their width and blocks of keys at multiples of theirs, counted from the sequence's first
token, so a query's result is bit for bit the same wherever its chunk was cut and whatever else is in the batch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.softcap import capped

_LOG2E = tl.constexpr(math.log2(math.e))
_LEAST = tl.constexpr(-1.0e30)  # below any score, and finite: the difference of two is a number


@triton.jit
def _prefill_attn(
    q,
    kv,
    out,
    tiles,
    count,
    blocks,
    sinks,
    q_stride,
    out_stride,
    kv_stride,
    SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PACKED: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    SLICES: tl.constexpr = (GROUP + PACKED - 1) // PACKED  # tiles that the heads of one key head take
    tile, part = tl.program_id(0) // (KV_HEADS * SLICES), tl.program_id(0) % (KV_HEADS * SLICES)
    if tile >= tl.load(count):
        return
    first = tl.load(tiles + tile * 5)
    low = tl.load(tiles + tile * 5 + 1)
    end = tl.load(tiles + tile * 5 + 2)
    offset = tl.load(tiles + tile * 5 + 3)
    table = blocks + tl.load(tiles + tile * 5 + 4)
    UNIT: tl.constexpr = (SCALE if SOFTCAP == 0 else 1) * _LOG2E  # of a score, in powers of 2
    QUERIES: tl.constexpr = ROWS // PACKED

    row = tl.arange(0, ROWS)
    position = first + row // PACKED
    in_group = part % SLICES * PACKED + row % PACKED
    head = part // SLICES * GROUP + in_group
    there = (in_group < GROUP) & (position >= low) & (position < end)
    dim = tl.arange(0, DIMS)
    wanted = there[:, None] & (dim < DIM)[None, :]
    token = (offset + position).to(tl.int64)
    queries = tl.load(q + (token * q_stride + head * DIM)[:, None] + dim[None, :], mask=wanted, other=0.0)

    key = tl.arange(0, KEYS)
    kv_head = (part // SLICES).to(tl.int64)
    keys = kv + kv_head * kv_stride + dim[None, :]
    values = kv + (kv_head + KV_HEADS) * kv_stride + dim[None, :]

    if sinks is None:
        highest = tl.full([ROWS], _LEAST, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    else:
        highest = tl.maximum(tl.load(sinks + head, mask=there, other=0.0).to(tl.float32) * _LOG2E, _LEAST)
        total = tl.full([ROWS], 1.0, tl.float32)
    mixed = tl.zeros([ROWS, DIMS], tl.float32)

    # Keys that every query sees lie between `edge` and `diagonal`; only blocks outside need a mask.
    diagonal = (first + 1) // KEYS * KEYS
    begin = 0
    edge = 0
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // KEYS * KEYS
        edge = tl.maximum(first + QUERIES - WINDOW, 0)
    block = tl.load(table + (begin + key) // BLOCK_SIZE, mask=begin + key < end, other=0)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        seen = at + key
        written = seen < end
        within = key % BLOCK_SIZE if KEYS % BLOCK_SIZE == 0 else seen % BLOCK_SIZE
        line = (block * BLOCK_SIZE + within).to(tl.int64)[:, None] * DIM
        block = tl.load(table + (seen + KEYS) // BLOCK_SIZE, mask=seen + KEYS < end, other=0)
        loaded = written[:, None] if DIM == DIMS else written[:, None] & (dim < DIM)[None, :]
        k = tl.load(keys + line, mask=loaded, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        if SOFTCAP > 0.0:
            scores = capped(scores, SCALE, SOFTCAP)
        if (at >= diagonal) | (at < edge):
            visible = seen[None, :] <= position[:, None]
            if WINDOW > 0:
                visible &= seen[None, :] > position[:, None] - WINDOW
            scores = tl.where(visible, scores, float("-inf"))
        risen = tl.maximum(highest, tl.max(scores, 1) * UNIT)
        weights = tl.exp2(scores * UNIT - risen[:, None])
        kept = tl.exp2(highest - risen)
        total = total * kept + tl.sum(weights, 1)
        v = tl.load(values + line, mask=loaded, other=0.0)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * kept[:, None], input_precision="ieee")
        highest = risen

    mixed /= tl.where(there, total, 1.0)[:, None]  # a row that is no query may have seen no key
    tl.store(
        out + (token * out_stride + head * DIM)[:, None] + dim[None, :], mixed.to(out.dtype.element_ty), mask=wanted
    )


def prefill_attn(
    q: torch.Tensor,
    kv: torch.Tensor,
    tiles: torch.Tensor,
    count: torch.Tensor,
    blocks: torch.Tensor,
    out: torch.Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    shape: launch.Prefill | None = None,
) -> None:
    """Compute attention of chunks' queries q [T, Q, D] over all their keys so far in kv [2K, S, D], into out [T, Q *
    D].

    tiles int32 [N, 5] and blocks int32 [B]: from device.tiles.plan_tiles, whose `queries` must be those of `shape`.
    The first count[0] of the tiles are computed, so N may be a capacity. What no tile covers stays unchanged. scale,
    window, softcap, sinks [Q]: as in reference.prefill_attn. shape: the launch table's, except for smaller ones in
    tests.
    """
    heads, head_dim = q.shape[1:]
    kv_heads = kv.shape[0] // 2
    group = heads // kv_heads
    shape = shape or launch.prefill(head_dim, q.element_size(), small=launch.is_small(q.device))
    packed = min(group, shape.rows)
    programs = len(tiles) * kv_heads * triton.cdiv(group, packed)
    _prefill_attn[(programs,)](
        q,
        kv,
        out,
        tiles,
        count,
        blocks,
        sinks,
        q.stride(0),
        out.stride(0),
        kv.stride(0),
        SCALE=scale,
        SOFTCAP=softcap or 0.0,
        WINDOW=window or 0,
        KV_HEADS=kv_heads,
        GROUP=group,
        PACKED=packed,
        DIM=head_dim,
        DIMS=max(triton.next_power_of_2(head_dim), 16),
        BLOCK_SIZE=block_size,
        ROWS=shape.rows,
        KEYS=shape.keys,
        STAGES=shape.stages,
        num_warps=shape.warps,
    )
