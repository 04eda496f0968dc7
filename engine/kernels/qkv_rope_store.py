"""From the product of queries, keys and values to attention: norm per head, rotation, and storing in the cache.

The product is read once, and each number is written once. A program computes some heads of one token; queries, keys and
values may be in one program, so any numbers of heads fill it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch


@triton.jit
def _qkv_rope_store(
    qkv,
    cos,
    sin,
    positions,
    slots,
    kv,
    q_out,
    q_norm,
    k_norm,
    token_stride,
    head_stride,
    kv_stride,
    q_stride,
    EPS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, DIMS)
    there = (head < QUERIES + 2 * KEYS)[:, None] & (dim < DIM)[None, :]
    source = qkv + token * token_stride + head.to(tl.int64) * head_stride
    x = tl.load(source[:, None] + dim[None, :], mask=there, other=0.0)
    x = x.to(tl.float32)
    turned = (head < QUERIES + KEYS)[:, None]  # values are neither normed nor rotated
    if q_norm is not None:
        q_weight = tl.load(q_norm + dim, mask=dim < DIM, other=0.0).to(tl.float32)[None, :]
        k_weight = tl.load(k_norm + dim, mask=dim < DIM, other=0.0).to(tl.float32)[None, :]
        root = tl.rsqrt(tl.sum(x * x, 1) / DIM + EPS)[:, None]
        x = tl.where(turned, x * root * tl.where((head < QUERIES)[:, None], q_weight, k_weight), x)
    if cos is not None:
        pair = tl.arange(0, DIMS // 2)
        angle = tl.load(positions + token).to(tl.int64) * (DIM // 2) + pair
        c = tl.load(cos + angle, mask=pair < DIM // 2, other=1.0)[None, :]
        s = tl.load(sin + angle, mask=pair < DIM // 2, other=0.0)[None, :]
        c, s = tl.where(turned, c, 1.0), tl.where(turned, s, 0.0)
        even, odd = tl.split(tl.reshape(x, [HEADS, DIMS // 2, 2]))
        x = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), [HEADS, DIMS])
    x = x.to(kv.dtype.element_ty)
    if QUERIES > 0:
        tl.store(
            q_out + token * q_stride + (head * DIM)[:, None] + dim[None, :], x, mask=there & (head < QUERIES)[:, None]
        )
    slot = tl.load(slots + token).to(tl.int64)
    row = kv + (head - QUERIES).to(tl.int64) * kv_stride + slot * DIM
    tl.store(row[:, None] + dim[None, :], x, mask=there & ((head >= QUERIES) & (slot >= 0))[:, None])


def qkv_rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    q_out: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Norm and rotate qkv [T, (Q + 2K) * D] like reference.qkv_rope_store.

    Queries are written to q_out [T, Q, D], keys and values to slots [T] (int64) of kv [2K, S, D]; a token whose slot is
    below 0 stores none. cos, sin [positions, D / 2] float32, taken at positions [T]; None: no rotation. q_norm, k_norm
    [D], interleaved like the heads; None: no norm. Computed in float32 and rounded once. q_out may be part of qkv, as
    its first columns.
    """
    _launch(qkv, qkv.stride(0), q_out.shape[2], cos, sin, positions, slots, kv, q_out, q_norm, k_norm, eps)


def store(new: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor) -> None:
    """Write new [T, 2K, D] to slots [T] (int64) of kv [2K, S, D]; a token whose slot is below 0 stores none."""
    _launch(new, new.stride(0), new.stride(1), None, None, None, slots, kv, None, None, None, 0.0)


def _launch(
    qkv: torch.Tensor,
    token_stride: int,
    head_stride: int,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    positions: torch.Tensor | None,
    slots: torch.Tensor,
    kv: torch.Tensor,
    q_out: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    queries, head_dim = 0 if q_out is None else q_out.shape[1], kv.shape[2]
    heads = queries + kv.shape[0]
    padded = triton.next_power_of_2(head_dim)
    at_once = min(triton.next_power_of_2(heads), max(launch.ROPE_ELEMENTS // padded, 1))
    _qkv_rope_store[len(qkv), triton.cdiv(heads, at_once)](
        qkv,
        cos,
        sin,
        positions,
        slots,
        kv,
        q_out,
        q_norm,
        k_norm,
        token_stride,
        head_stride,
        kv.stride(0),
        0 if q_out is None else q_out.stride(0),
        EPS=eps,
        QUERIES=queries,
        KEYS=kv.shape[0] // 2,
        DIM=head_dim,
        DIMS=padded,
        HEADS=at_once,
        num_warps=launch.warps(at_once * padded),
    )
