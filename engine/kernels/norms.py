"""RMS norm of the residual stream, including the addition of a layer's output, in one pass: a program holds
a whole row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit
def _rms_norm(
    x,
    added,
    weight,
    out,
    x_stride,
    added_stride,
    out_stride,
    EPS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    there = column < SIZE
    values = tl.load(x + row * x_stride + column, mask=there, other=0.0)
    if added is not None:
        values += tl.load(added + row * added_stride + column, mask=there, other=0.0).to(tl.float32)
        tl.store(x + row * x_stride + column, values, mask=there)
    scale = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, 0) / SIZE + EPS) * scale
    tl.store(out + row * out_stride + column, normed.to(out.dtype.element_ty), mask=there)


def rms_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> torch.Tensor:
    """Add added [T, H] to x [T, H] float32, then write x's reference.rms_norm with weight [H] to out [T, H].

    Return out.

    added, weight and out may each be of any float dtype; computed in float32. Rows may have any stride, but a row's
    numbers are contiguous.
    """
    size = x.shape[1]
    width = triton.next_power_of_2(size)
    _rms_norm[(len(x),)](
        x,
        added,
        weight,
        out,
        x.stride(0),
        0 if added is None else added.stride(0),
        out.stride(0),
        EPS=eps,
        SIZE=size,
        WIDTH=width,
        num_warps=launch.warps(width),
    )
    return out
