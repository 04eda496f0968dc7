"""Products of few rows with a weight matrix, added to the residual stream: a decode step's, which are bound by reading
the weights once.

A program computes some columns over the whole depth. Its warps each take a slice of the depth, and their sums are added
in a fixed order, so that a small matrix too is read by all multiprocessors.

Shapes: T rows, K depth, N columns of the result; a weight is [N, K] as in torch's linear, K contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit(do_not_specialize=["rows"])
def _add_product(
    x,
    weight,
    bias,
    out,
    rows,
    columns,
    depth,
    x_stride,
    out_stride,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    target = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    before = tl.load(target, mask=there, other=0.0)
    # A column beyond the last one reads the last one's weights; its result is not stored.
    read = weight + tl.minimum(column, columns - 1).to(tl.int64)[None, None, :] * depth
    inputs = x + row.to(tl.int64)[None, :, None] * x_stride
    slices = tl.arange(0, SLICES)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]  # [SLICES, DEPTH]
    sums = tl.zeros([SLICES, ROWS, COLUMNS], tl.float32)
    for start in tl.range(0, depth, SLICES * DEPTH, num_stages=STAGES):
        at = start + slices
        if EVEN:
            values = tl.load(inputs + at[:, None, :], mask=(row < rows)[None, :, None], other=0.0)
            weights = tl.load(read + at[:, :, None])
        else:
            inside = at < depth
            values = tl.load(inputs + at[:, None, :], mask=(row < rows)[None, :, None] & inside[:, None, :], other=0.0)
            weights = tl.load(read + at[:, :, None], mask=inside[:, :, None], other=0.0)
        sums = tl.dot(values, weights, sums, input_precision="ieee")
    result = tl.sum(sums, 0)
    if bias is not None:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(target, before + result, mask=there)


def add_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    shape: launch.AddProduct | None = None,
) -> torch.Tensor:
    """Add x [T, K] times weight [N, K], transposed, plus bias [N], to out [T, N] float32; return out.

    T <= launch.FEW_ROWS; x is of the weight's dtype. Sums are in float32 throughout. shape: by default what the launch
    table says.
    """
    rows, depth = x.shape
    columns = out.shape[1]
    shape = shape or launch.add_product(rows, columns)
    _add_product[(triton.cdiv(columns, shape.columns),)](
        x,
        weight,
        bias,
        out,
        rows,
        columns,
        depth,
        x.stride(0),
        out.stride(0),
        EVEN=depth % (shape.warps * shape.depth) == 0,
        ROWS=launch.row_tile(rows),
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        SLICES=shape.warps,
        STAGES=shape.stages,
        num_warps=shape.warps,
    )
    return out
