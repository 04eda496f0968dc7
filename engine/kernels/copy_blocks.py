"""Copies of whole blocks of the KV cache, all layers and heads in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit
def _copy_blocks(pool, pairs, stride, RUN: tl.constexpr, WIDTH: tl.constexpr):
    head = pool + tl.program_id(0).to(tl.int64) * stride
    source = head + tl.load(pairs + 2 * tl.program_id(1)).to(tl.int64) * RUN
    target = head + tl.load(pairs + 2 * tl.program_id(1) + 1).to(tl.int64) * RUN
    for begin in range(0, RUN, WIDTH):
        element = begin + tl.arange(0, WIDTH)
        there = element < RUN
        tl.store(target + element, tl.load(source + element, mask=there), mask=there)


def copy_blocks(pool: torch.Tensor, pairs: torch.Tensor, block_size: int) -> None:
    """Copy blocks of a contiguous pool [L, 2K, S, D] like reference.copy_blocks.

    pairs int32 [P, 2]: (source, target) block numbers. Targets are distinct and no source is a target, so the copies
    may run in any order.
    """
    layers, heads, slots, head_dim = pool.shape
    run = block_size * head_dim
    width = min(triton.next_power_of_2(run), launch.COPY_ELEMENTS)
    _copy_blocks[layers * heads, len(pairs)](
        pool, pairs, slots * head_dim, RUN=run, WIDTH=width, num_warps=launch.warps(width)
    )
