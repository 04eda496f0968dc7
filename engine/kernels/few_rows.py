"""Products of few rows with a weight matrix: a decode step's, which are bound by reading the weights once.

A program computes some columns over the whole depth. Its warps each take a slice of the depth, and their sums are added
in a fixed order, so that a small matrix too is read by all multiprocessors. What comes before and after the product in
a decoder's layer (an RMS norm; a gate, or the addition to the residual stream) is done by the same program.

Shapes: T rows, K depth, N columns of the result; a weight is [N, K] as in torch's linear, K contiguous.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    x,
    weight,
    norm,
    bias,
    out,
    rows,
    columns,
    depth,
    x_stride,
    out_stride,
    EPS: tl.constexpr,
    GATED: tl.constexpr,
    ADDS: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    target = out + part * rows * out_stride + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    if ADDS:
        before = tl.load(target, mask=there, other=0.0)
    # A column beyond the last one reads the last one's weights; its result is not stored.
    read = weight + tl.minimum(column, columns - 1).to(tl.int64)[None, None, :] * depth
    up = read + columns.to(tl.int64) * depth
    inputs = x + row.to(tl.int64)[None, :, None] * x_stride
    slices = tl.arange(0, SLICES)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]  # [SLICES, DEPTH]
    sums = tl.zeros([SLICES, ROWS, COLUMNS], tl.float32)
    up_sums = tl.zeros([SLICES, ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([SLICES, ROWS], tl.float32)
    share = tl.cdiv(tl.cdiv(depth, SLICES * DEPTH), PARTS) * SLICES * DEPTH
    end = tl.minimum((part + 1) * share, depth)
    for start in tl.range(part * share, end, SLICES * DEPTH, num_stages=STAGES):
        at = start + slices
        if EVEN:
            values = tl.load(inputs + at[:, None, :], mask=(row < rows)[None, :, None], other=0.0)
            weights = tl.load(read + at[:, :, None])
        else:
            inside = at < end
            values = tl.load(inputs + at[:, None, :], mask=(row < rows)[None, :, None] & inside[:, None, :], other=0.0)
            weights = tl.load(read + at[:, :, None], mask=inside[:, :, None], other=0.0)
        if norm is not None:
            squares += tl.sum(values * values, 2)
            scale = tl.load(norm + at) if EVEN else tl.load(norm + at, mask=inside, other=0.0)
            values = (values * scale[:, None, :]).to(weight.dtype.element_ty)
        sums = tl.dot(values, weights, sums, input_precision="ieee")
        if GATED:
            if EVEN:
                up_weights = tl.load(up + at[:, :, None])
            else:
                up_weights = tl.load(up + at[:, :, None], mask=inside[:, :, None], other=0.0)
            up_sums = tl.dot(values, up_weights, up_sums, input_precision="ieee")
    result = tl.sum(sums, 0)
    if norm is not None:
        factor = tl.rsqrt(tl.sum(squares, 0) / depth + EPS)
        result *= factor[:, None]
    if bias is not None:
        result += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    if GATED:
        up_result = tl.sum(up_sums, 0)
        if norm is not None:
            up_result *= factor[:, None]
        if bias is not None:
            up_result += tl.load(bias + columns + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
        result = result * tl.sigmoid(result) * up_result
    if ADDS:
        result += before
    tl.store(target, result.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def _sum_parts(
    parts, bias, out, rows, columns, out_stride, ADDS: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    target = out + row * out_stride + column
    result = tl.zeros([WIDTH], tl.float32)
    for part in tl.static_range(PARTS):
        result += tl.load(parts + (part * rows + row) * columns + column, mask=there, other=0.0)
    if bias is not None:
        result += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        result += tl.load(target, mask=there, other=0.0)
    tl.store(target, result.to(out.dtype.element_ty), mask=there)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    adds: bool = False,
    shape: launch.FewRows | None = None,
) -> torch.Tensor:
    """Write x [T, K] times weight [N, K], transposed, plus bias [N], to out [T, N]; return out. T <= launch.MOST_ROWS.

    x is of the weight's dtype. norm [K] float32: x is float32 and its RMS norm with this weight is multiplied; the norm
    is rounded to the weight's dtype before it is divided by the root mean square, so a float16's range may not suffice.
    gated: weight [2 * N, K] has the gates first; silu(gate) * up is written. adds: the product is added to out, which
    is float32. Sums are in float32 throughout. shape: by default what the launch table says.
    """
    rows, depth = x.shape
    columns = out.shape[1]
    if shape is None:
        shape = launch.few_rows(rows, columns, depth, gated=gated, normed=norm is not None)
    tiles = triton.cdiv(columns, shape.columns)
    target = out if shape.parts == 1 else x.new_empty(shape.parts * rows, columns, dtype=torch.float32)
    last = shape.parts == 1
    _few_rows[tiles, shape.parts](
        x,
        weight,
        norm,
        bias if last else None,
        target,
        rows,
        columns,
        depth,
        x.stride(0),
        target.stride(0),
        EPS=eps,
        GATED=gated,
        ADDS=adds and last,
        PARTS=shape.parts,
        EVEN=depth % (shape.warps * shape.depth) == 0,
        ROWS=launch.few_rows_tile(rows),
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        SLICES=shape.warps,
        STAGES=shape.stages,
        num_warps=shape.warps,
    )
    if not last:
        width = min(triton.next_power_of_2(columns), launch.SUM_ELEMENTS)
        _sum_parts[rows, triton.cdiv(columns, width)](
            target,
            bias,
            out,
            rows,
            columns,
            out.stride(0),
            ADDS=adds,
            PARTS=shape.parts,
            WIDTH=width,
            num_warps=launch.warps(width),
        )
    return out
