"""What a model asks of its backend, between its own products: the backend of a CPU here, a device's in engine/device/.

A backend is made anew for every step; it knows the step's positions, whose keys and values each token sees, and where
its own go. So a decoder says what is to be computed, and each backend how, in as many kernels as suit it.

Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, D head_dim, I intermediate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.models.rope import rotate_
from engine.models.spec import AttentionSpec

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""attend(layer, q [T, Q, D], kv [T, 2K, D]: keys' heads, then values', sinks [Q] or None) -> [T, Q * D].

It stores kv as well. sinks: a score per head that takes its share of the softmax and brings no value.
"""


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer of the decoder does to its heads before they attend.

    q_norm, k_norm [D], float32: an RMS norm of each head; both or none. rotated: by the tokens' positions.
    """

    spec: AttentionSpec
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float
    rotated: bool


class Ops(Protocol):
    """One step's backend."""

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """As Attend: all that models with heads of their own making ask for."""
        ...

    def layers(self, x: torch.Tensor) -> bool:
        """Run the residual stream x [T, H] through all layers, in place, if this backend has such a call."""
        ...

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, H] float32 gets `added` [T, H], in place; gives its RMS norm in the model's dtype."""
        ...

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Norm, rotate, store and attend: qkv [T, (Q + 2K) * D], which may be changed, -> [T, Q * D]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of gate_up [T, 2 * I], which may be changed, -> [T, I]."""
        ...


@dataclass(frozen=True, slots=True)
class TorchOps:
    """The backend of a CPU: torch's own operations.

    turn: the tokens' rotations, as rotate_ takes them; None for models that rotate for themselves.
    """

    attention: Attend
    turn: torch.Tensor | None
    dtype: torch.dtype

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """As Ops.attend."""
        return self.attention(layer, q, kv, sinks)

    def layers(self, x: torch.Tensor) -> bool:
        """As Ops.layers: it goes step by step."""
        return False

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As Ops.norm."""
        if added is not None:
            x += added
        return rms_norm(x, weight, eps).to(self.dtype)

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """As Ops.heads."""
        spec = heads.spec
        by_head = qkv.view(len(qkv), -1, spec.head_dim)  # [T, Q + 2K, D]
        if heads.q_norm is not None and heads.k_norm is not None:
            _norm_heads_(by_head[:, : spec.heads], heads.q_norm, heads.eps)
            _norm_heads_(by_head[:, spec.heads : spec.heads + spec.kv_heads], heads.k_norm, heads.eps)
        if heads.rotated and self.turn is not None:
            rotate_(by_head[:, : spec.heads + spec.kv_heads], self.turn)
        return self.attention(layer, by_head[:, : spec.heads], by_head[:, spec.heads :], None)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As Ops.silu_mul."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class SteadyOps(TorchOps):
    """The backend of a CPU in deterministic mode: a number does not depend on where in a tensor it stands.

    torch's own silu computes the elements that are left over at the end of a thread's share by another exponential
    than the rest; its `exp` does not, and the other operations here are exact or go by rows.
    """

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As Ops.silu_mul."""
        gate, up = gate_up.chunk(2, dim=-1)
        x = gate.float()
        return x.div(x.neg().exp_().add_(1)).to(gate.dtype).mul_(up)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [N, H] by the root of its rows' mean square and eps, times weight [H]; all float32.

    In fewer operations than torch's own: sqrt(mean(x^2) + eps) is hypot(|x| / sqrt(H), sqrt(eps)).
    """
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
    return x.div(torch.hypot(size, _root(eps))).mul_(weight)


@cache
def _root(number: float) -> torch.Tensor:
    return torch.tensor(number**0.5)


def _norm_heads_(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    heads.copy_(F.rms_norm(heads.float(), heads.shape[-1:], weight, eps))
