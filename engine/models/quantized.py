"""Products with weights of one byte: int8 per output channel, and the activations int8 per token as they come.

Sums of such products are whole numbers, which int32 holds exactly; all else here is one rounding per number. So a
token's results do not depend, to the bit, on how many run beside it, whatever kernels the library chooses by shape.
That is why a token has a scale of its own: one for all of a step would be a number that its company changes. The
weights lie in plain order, which torch's product reads as fast as a packed one, so that a tied head and the embedding
are one matrix (docs/adr/0036-int8-per-token.md).

Shapes: N tokens, I in, O out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine.errors import ConfigError

_MOST = 127  # -128 stays out, so that the scale is the same on both sides of zero
_LEAST = 1e-30  # a scale's divisor, for what is all zeros


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """values [O, I] int8, scales [O] float32: a row is values * scale."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Matrix:
        """Round `weight` [O, I] float32, row by row, to the nearest; it is used up."""
        top = weight.abs().amax(1, keepdim=True).clamp_min_(_LEAST)
        return cls(weight.mul_(_MOST / top).round_().to(torch.int8), top.squeeze(1).div_(_MOST))

    def product(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [N, I] W^T + bias [O]; gives [N, O] in x's dtype."""
        scale = x.abs().amax(1, keepdim=True).float().div_(_MOST).clamp_min_(_LEAST)
        small = x.div(scale).round_().to(torch.int8)
        y = torch._int_mm(small, self.values.t()).float().mul_(self.scales).mul_(scale)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Some rows, numbers [N] -> [N, I] float32."""
        return self.values[numbers].float().mul_(self.scales[numbers].unsqueeze(1))


def check_int8() -> None:
    """Raise ConfigError where torch does not add up int8 products exactly: on many CPUs without VNNI two in 16 bits."""
    if not adds_up_exactly():
        raise ConfigError(
            "quantization is int8, which needs a CPU that adds up int8 products without loss: one with VNNI (AVX-512 or"
            " AVX), or one with AVX2 and a C compiler, for kernels that are native"
        )


@cache
def adds_up_exactly() -> bool:
    """Whether the largest products of all, in shapes of a few kernels, give what they should."""
    width, most = 256, torch.tensor(_MOST, dtype=torch.int8)
    signs = torch.tensor([1, -1], dtype=torch.int8).repeat(32)  # of the outputs
    weights = (most * signs).unsqueeze(1).repeat(1, width)
    expected = signs.int() * (width * _MOST * _MOST)
    return all(
        bool((torch._int_mm(most.repeat(rows, width), weights.t()) == expected).all()) for rows in (1, 8, 32, 512)
    )
