"""What a model asks of its backend (engine.models.ops.Ops), by Triton's kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.device.attention import DeviceAttention, Plan, Rotations
from engine.kernels import launch
from engine.kernels.activation import silu_mul
from engine.kernels.add_product import add_product
from engine.kernels.norms import rms_norm
from engine.models.linear import Dense, Linear
from engine.models.ops import Heads


@dataclass(frozen=True, slots=True)
class TritonOps:
    """One step's backend. rotations: None for models that rotate by themselves. positions: of the step's tokens, [T].

    adds: whether products of few rows may be added to the residual stream by a kernel.
    """

    attention: DeviceAttention
    plan: Plan
    rotations: Rotations | None
    positions: torch.Tensor
    dtype: torch.dtype
    adds: bool = False

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Like AttentionOps.attend."""
        return self.attention.run(self.plan, layer, q, kv, sinks)

    def layers(self, x: torch.Tensor) -> bool:
        """Like DecoderOps.layers: this backend has no such call, so the layers run operation by operation."""
        return False

    def add(self, x: torch.Tensor, h: torch.Tensor, linear: Linear) -> torch.Tensor | None:
        """Like DecoderOps.add: adds the products of few rows."""
        if self.adds and len(x) <= launch.FEW_ROWS and isinstance(linear, Dense) and linear.weight.is_contiguous():
            add_product(h, linear.weight, linear.bias, x)
            return None
        return linear(h)

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like DecoderOps.norm."""
        return rms_norm(x, added, weight, eps, torch.empty_like(x, dtype=self.dtype))

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Like DecoderOps.heads."""
        rotations = self.rotations if heads.rotated else None
        return self.attention.run_fused(self.plan, layer, qkv, heads, rotations, self.positions)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Like DecoderOps.silu_mul."""
        return silu_mul(gate_up, gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2))
