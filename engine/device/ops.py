"""What a model asks of its backend (engine.models.ops.Ops), by Triton's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch

from engine.device.attention import DeviceAttention, Plan, Turns
from engine.kernels import launch
from engine.kernels.activation import silu_mul
from engine.kernels.few_rows import product
from engine.kernels.norms import rms_norm
from engine.models.linear import Dense, Linear
from engine.models.ops import Heads


@dataclass(frozen=True, slots=True)
class FewRows:
    """A decode step's products, each with the kernel for few rows or by torch, by the number of rows and its sizes."""

    dtype: torch.dtype

    def normed(
        self, x: torch.Tensor, added: torch.Tensor | None, norm: torch.Tensor, eps: float, linear: Linear
    ) -> torch.Tensor:
        """Like JoinedOps.normed."""
        if not self._takes(linear, len(x)):
            return linear(self._norm(x, added, norm, eps))
        return self._product(x, added, norm, eps, linear, linear.weight.shape[0], gated=False)

    def gated(
        self, x: torch.Tensor, added: torch.Tensor | None, norm: torch.Tensor, eps: float, linear: Linear
    ) -> torch.Tensor:
        """Like JoinedOps.gated."""
        if not self._takes(linear, len(x)):
            gate_up = linear(self._norm(x, added, norm, eps))
            return silu_mul(gate_up, gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2))
        return self._product(x, added, norm, eps, linear, linear.weight.shape[0] // 2, gated=True)

    def add(self, x: torch.Tensor, h: torch.Tensor, linear: Linear) -> torch.Tensor | None:
        """Like JoinedOps.add."""
        if not self._takes(linear, len(x)):
            return linear(h)
        product(h, linear.weight, x, bias=linear.bias, adds=True)
        return None

    def _takes(self, linear: Linear, rows: int) -> TypeGuard[Dense]:
        return isinstance(linear, Dense) and linear.weight.is_contiguous() and launch.joins(rows)

    def _norm(self, x: torch.Tensor, added: torch.Tensor | None, norm: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, added, norm, eps, torch.empty_like(x, dtype=self.dtype))

    def _product(
        self,
        x: torch.Tensor,
        added: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        linear: Dense,
        columns: int,
        *,
        gated: bool,
    ) -> torch.Tensor:
        out = x.new_empty(len(x), columns, dtype=self.dtype)
        if self.dtype == torch.float16:  # a float16 may not hold the residual stream before its norm
            return product(self._norm(x, added, norm, eps), linear.weight, out, bias=linear.bias, gated=gated)
        if added is not None:
            x += added
        return product(x, linear.weight, out, bias=linear.bias, norm=norm, eps=eps, gated=gated)


@dataclass(frozen=True, slots=True)
class TritonOps:
    """One step's backend. turns: None for models that rotate by themselves. positions: of the step's tokens, [T].

    joins: whether products are computed together with what is around them.
    """

    attention: DeviceAttention
    plan: Plan
    turns: Turns | None
    positions: torch.Tensor
    dtype: torch.dtype
    joins: bool = False

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Like AttentionOps.attend."""
        return self.attention.run(self.plan, layer, q, kv, sinks)

    def layers(self, x: torch.Tensor) -> bool:
        """Like DecoderOps.layers: this backend has no such call, so the layers run operation by operation."""
        return False

    def joined(self, x: torch.Tensor) -> FewRows | None:
        """Like DecoderOps.joined."""
        return FewRows(self.dtype) if self.joins and launch.joins(len(x)) else None

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like DecoderOps.norm."""
        return rms_norm(x, added, weight, eps, torch.empty_like(x, dtype=self.dtype))

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Like DecoderOps.heads."""
        turns = self.turns if heads.rotated else None
        return self.attention.run_fused(self.plan, layer, qkv, heads, turns, self.positions)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Like DecoderOps.silu_mul."""
        return silu_mul(gate_up, gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2))
