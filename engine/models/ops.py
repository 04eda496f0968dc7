"""What a model asks of its backend between its matrix products: a CPU's backend here, a device's in engine/device/.

A backend is made anew for every step; it knows the step's positions, which keys and values each token sees, and where
the token's own go. So a decoder says what is to be computed, and each backend decides how, in as many kernels as suit
it.

Shapes: T tokens, H hidden, Q query heads, K key (and value) heads, D head_dim, I intermediate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.models.linear import Linear
from engine.models.rope import rotate_
from engine.models.spec import AttentionSpec

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""attend(layer, q [T, Q, D], kv [T, 2K, D]: keys' heads, then values', sinks [Q] or None) -> [T, Q * D].

It also stores kv. sinks: a score per head that takes its share of the softmax and contributes no value.
"""


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer of the decoder does to its heads before attention."""

    spec: AttentionSpec
    q_norm: torch.Tensor | None
    """[D] float32: the weight of an RMS norm of each query head; set together with k_norm or not at all."""
    k_norm: torch.Tensor | None
    """[D] float32: the same for key heads."""
    eps: float
    rotated: bool
    """Whether heads are rotated by the tokens' positions."""


class AttentionOps(Protocol):
    """What a model that makes its heads itself (bridge.py) asks of one step's backend."""

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Like Attend."""
        ...


class DecoderOps(Protocol):
    """What the engine's own decoder (llama.py) asks of one step's backend."""

    def layers(self, x: torch.Tensor) -> bool:
        """Run the residual stream x [T, H] through all layers, in place; return False if this backend has
        no such call.
        """
        ...

    def add(self, x: torch.Tensor, h: torch.Tensor, linear: Linear) -> torch.Tensor | None:
        """Add the product of h [T, *] to x [T, H] float32, in place, and return None; or return it, for the next
        norm or the caller to add.
        """
        ...

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Add `added` [T, H] to x [T, H] float32, in place; return x's RMS norm in the model's dtype."""
        ...

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Norm, rotate, store and attend: qkv [T, (Q + 2K) * D], which may be changed, -> [T, Q * D]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up of gate_up [T, 2 * I], which may be changed, -> [T, I]."""
        ...


class Ops(AttentionOps, DecoderOps, Protocol):
    """One step's backend for any model."""


@dataclass(frozen=True, slots=True)
class TorchOps:
    """A CPU's backend: torch's own operations.

    rotation: the tokens' rotations, as rotate_ takes them; None for models that rotate by themselves.
    """

    attention: Attend
    rotation: torch.Tensor | None
    dtype: torch.dtype

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Like AttentionOps.attend."""
        return self.attention(layer, q, kv, sinks)

    def layers(self, x: torch.Tensor) -> bool:
        """Like DecoderOps.layers: this backend has no such call, so the layers run operation by operation."""
        return False

    def add(self, x: torch.Tensor, h: torch.Tensor, linear: Linear) -> torch.Tensor | None:
        """Like DecoderOps.add: returns it."""
        return linear(h)

    def norm(self, x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Like DecoderOps.norm."""
        if added is not None:
            x += added
        return rms_norm(x, weight, eps).to(self.dtype)

    def heads(self, layer: int, qkv: torch.Tensor, heads: Heads) -> torch.Tensor:
        """Like DecoderOps.heads."""
        spec = heads.spec
        by_head = qkv.view(len(qkv), -1, spec.head_dim)  # [T, Q + 2K, D]
        if heads.q_norm is not None and heads.k_norm is not None:
            _norm_heads_(by_head[:, : spec.heads], heads.q_norm, heads.eps)
            _norm_heads_(by_head[:, spec.heads : spec.heads + spec.kv_heads], heads.k_norm, heads.eps)
        if heads.rotated and self.rotation is not None:
            rotate_(by_head[:, : spec.heads + spec.kv_heads], self.rotation)
        return self.attention(layer, by_head[:, : spec.heads], by_head[:, spec.heads :], None)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Like DecoderOps.silu_mul."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class DeterministicOps(TorchOps):
    """A CPU's backend in deterministic mode: a number does not depend on its place in a tensor.

    torch's own silu computes the elements left over at the end of a thread's share with another exponential than the
    rest; its `exp` does not, and the other operations here are exact or work row by row.
    """

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Like DecoderOps.silu_mul."""
        gate, up = gate_up.chunk(2, dim=-1)
        x = gate.float()
        return x.div(x.neg().exp_().add_(1)).to(gate.dtype).mul_(up)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x [N, H] divided by the root of its rows' mean square plus eps, times weight [H]; all float32.

    In fewer operations than torch's own: sqrt(mean(x^2) + eps) is hypot(|x| / sqrt(H), sqrt(eps)).
    """
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(x.shape[-1] ** -0.5)
    return x.div(torch.hypot(size, _root(eps))).mul_(weight)


@cache
def _root(number: float) -> torch.Tensor:
    return torch.tensor(number**0.5)


def _norm_heads_(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    heads.copy_(F.rms_norm(heads.float(), heads.shape[-1:], weight, eps))
