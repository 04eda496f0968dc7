"""Attention of whole rows from the partial results of a work list's items."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.attn_items import Work


@triton.jit
def _merge_parts(
    partial,
    lse,
    parts,
    part_slots,
    counts,
    out,
    sinks,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    rows = tl.load(counts + 2)
    first = tl.load(parts + row)
    last = tl.load(parts + row + 1)
    if row >= rows:
        return
    dim = tl.arange(0, DIMS)
    inside = dim < DIM
    if sinks is None:
        highest = float("-inf")
        total = 0.0
    else:
        highest = tl.load(sinks + head).to(tl.float32)
        total = 1.0
    mixed = tl.zeros([DIMS], tl.float32)
    # From the newest part, which is never empty, back to the oldest: parts that a window has left empty then add zeros
    # at the end, and the sums are the same to the bit whether the list names them or not.
    part = last - 1 - tl.arange(0, PARTS)
    slot = tl.load(part_slots + part, mask=part >= first, other=0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for _ in tl.range(0, last - first, PARTS):
        mine = part >= first
        place = slot.to(tl.int64) * HEADS + head
        scores = tl.load(lse + place, mask=mine, other=float("-inf"))
        values = tl.load(partial + place[:, None] * DIM + dim[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
        part -= PARTS
        slot = tl.load(part_slots + part, mask=part >= first, other=0)  # of the next turn
        risen = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.exp(scores - risen)
        kept = tl.exp(highest - risen)
        total = total * kept + tl.sum(weights, 0)
        mixed = mixed * kept + tl.sum(weights[:, None] * values, 0)
        highest = risen
    result = (mixed / total).to(out.dtype.element_ty)
    tl.store(out + (row.to(tl.int64) * HEADS + head) * DIM + dim, result, mask=inside)


def merge_parts(
    partial: torch.Tensor, lse: torch.Tensor, work: Work, out: torch.Tensor, sinks: torch.Tensor | None = None
) -> None:
    """Merge what attn_items wrote, partial fp32 [slots, Q, D] and lse fp32 [slots, Q], into out [R, Q * D].

    Rows from the list's count on are left unchanged. sinks [Q]: a score per head that takes its share of the softmax
    and contributes no value. Defined by reference.merge_parts.
    """
    heads, dim = partial.shape[1:]
    overlap = launch.overlap(partial.device, 2)
    _merge_parts[(len(out), heads)](
        partial,
        lse,
        work.parts,
        work.part_slots,
        work.counts,
        out,
        sinks,
        HEADS=heads,
        DIM=dim,
        DIMS=triton.next_power_of_2(dim),
        PARTS=launch.MERGE.parts,
        OVERLAP=bool(overlap),
        num_warps=launch.MERGE.warps,
        **overlap,
    )
