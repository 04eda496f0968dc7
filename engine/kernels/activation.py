"""The gate of a feed-forward layer: silu(gate) * up, read from one fused product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit
def _silu_mul(gate_up, out, in_stride, out_stride, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < SIZE
    gate = tl.load(gate_up + row * in_stride + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * in_stride + SIZE + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=there)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write silu(gate) * up of gate_up [T, 2 * I] to out [T, I] like reference.silu_mul, computed in
    float32; return out.
    """
    size = out.shape[1]
    width = min(triton.next_power_of_2(size), launch.GATE_ELEMENTS)
    _silu_mul[len(out), triton.cdiv(size, width)](
        gate_up, out, gate_up.stride(0), out.stride(0), SIZE=size, WIDTH=width, num_warps=launch.warps(width)
    )
    return out
