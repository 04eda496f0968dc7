"""What the kernels compute, in float64 on the device over whole tensors: engine.kernels.reference without its loops.

Shapes: R rows, T tokens, Q query heads, K key heads, G = Q / K, D head_dim, S slots of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.models.spec import AttentionSpec


def attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    positions: Sequence[int],
    spec: AttentionSpec,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention of queries q [R, Q, D] of one sequence over its keys and values, as [R, Q * D].

    The queries are at `positions`; the keys are at slots [S'] of kv [2K, S, D]. A query sees the keys up to its own
    position, and only those in its window if there is one.
    """
    keys, values = kv.index_select(1, slots).double().chunk(2)  # [K, S', D]
    by_head = q.double().view(len(q), spec.kv_heads, -1, spec.head_dim)  # [R, K, G, D]
    scores = torch.einsum("rkgd,ksd->rkgs", by_head, keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    at = torch.tensor(positions, device=q.device).view(-1, 1, 1, 1)
    key = torch.arange(len(slots), device=q.device)
    seen = key <= at
    if spec.window is not None:
        seen = seen & (key > at - spec.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        score = sinks.double().view(1, spec.kv_heads, -1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, score), -1)
    weights = scores.softmax(-1)[..., : len(slots)]
    return torch.einsum("rkgs,ksd->rkgd", weights, values).flatten(1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads [T, heads, D] in interleaved order, rotated by angles with cosines and sines [T, D / 2]."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    c, s = cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


def require(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise RuntimeError if a row's error is more than bfloat16 explains."""
    if not (found := error(out, expected)) <= 1e-2:
        raise RuntimeError(f"the error is {found:.3g}")


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative error of a row, |out - expected| / |expected|; NaN if `out` has a NaN."""
    expected = expected.double().flatten(1)
    difference = (out.double().flatten(1) - expected).norm(dim=1)
    return float((difference / expected.norm(dim=1).clamp_min(1e-30)).max())
