"""The backend of a CPU with a compiler: what a decoder asks for between its matrix products, in one call each.

Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, D head_dim, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.cache import KvCache
from engine.models.linear import Linear
from engine.models.ops import Heads
from engine.native.attention import NativeAttention, NativePlan
from engine.native.build import Kernels
from engine.native.stack import Stack


@dataclass(frozen=True, slots=True)
class NativeOps:
    """One step's backend for the engine's own decoder (DecoderOps); it runs no other model.

    rotations: the tokens', [T, D / 2] complex64. stack: for models whose products are all in C, otherwise None.
    """

    kernels: Kernels
    stack: Stack | None
    attention: NativeAttention
    cache: KvCache
    plan: NativePlan
    rotations: torch.Tensor

    def layers(self, x: torch.Tensor) -> bool:
        """Like DecoderOps.layers."""
        if self.stack is None:
            return False
        self.stack.run(self.plan, x, self.rotations)
        return True

    def add(self, x: torch.Tensor, h: torch.Tensor, linear: Linear) -> torch.Tensor:
        """Like DecoderOps.add: returns it."""
        return linear(h)

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like DecoderOps.norm."""
        out = torch.empty(x.shape, dtype=self.kernels.dtype)
        more = None if added is None else added.data_ptr()
        self.kernels.norm(x.data_ptr(), more, weight.data_ptr(), eps, out.data_ptr(), *x.shape)
        return out

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Like DecoderOps.heads."""
        spec, pool = heads.spec, self.cache.view(layer)
        self.kernels.rotate_store(
            qkv.data_ptr(),
            None if heads.q_norm is None else heads.q_norm.data_ptr(),
            None if heads.k_norm is None else heads.k_norm.data_ptr(),
            heads.eps,
            self.rotations.data_ptr() if heads.rotated else None,
            self.plan.slots.data_ptr(),
            pool.data_ptr(),
            pool.shape[1],
            len(qkv),
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
        )
        return self.attention.run(self.plan, layer, qkv.view(len(qkv), -1, spec.head_dim))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Like DecoderOps.silu_mul."""
        rows, width = gate_up.shape
        out = torch.empty(rows, width // 2, dtype=gate_up.dtype)
        self.kernels.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width // 2)
        return out
