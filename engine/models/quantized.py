"""Products with weights of one byte: int8 per output channel, with the activations quantized to int8 per token on the
fly.

Sums of such products are whole numbers, which int32 holds exactly; everything else here is one rounding per number. So
a token's results are bit for bit independent of how many tokens run beside it, whatever kernels the library chooses by
shape. That is why each token has its own scale: a scale for a whole step would depend on its other tokens. The weights
are in plain order, which torch's product reads as fast as a packed one, so that a tied head and the embedding are one
matrix (docs/adr/0036-int8-per-token.md).

Shapes: N tokens, I in, O out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from engine.errors import ConfigError

_MOST = 127  # -128 is not used, so that the scale is the same on both sides of zero
_LEAST = 1e-30  # the least divisor of a scale, for rows of zeros


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """values [O, I] int8, scales [O] float32: a row of weights is values * scale."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Matrix:
        """Round `weight` [O, I] float32, row by row, to the nearest int8; `weight` is consumed."""
        top = weight.abs().amax(1, keepdim=True).clamp_min_(_LEAST)
        return cls(weight.mul_(_MOST / top).round_().to(torch.int8), top.squeeze(1).div_(_MOST))

    def product(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x [N, I] W^T + bias [O] as [N, O] in x's dtype."""
        scale = x.abs().amax(1, keepdim=True).float().div_(_MOST).clamp_min_(_LEAST)
        small = x.div(scale).round_().to(torch.int8)
        y = torch._int_mm(small, self.values.t()).float().mul_(self.scales).mul_(scale)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return some rows, numbers [N] -> [N, I] float32."""
        return self.values[numbers].float().mul_(self.scales[numbers].unsqueeze(1))


def check_int8() -> None:
    """Raise ConfigError if torch does not add int8 products exactly: many CPUs without VNNI add two of them
    in 16 bits.
    """
    if not adds_up_exactly():
        raise ConfigError(
            "quantization is int8, which needs a CPU that adds up int8 products without loss: one with VNNI (AVX-512 or"
            " AVX), or one with AVX2 and a C compiler, for kernels that are native"
        )


@cache
def adds_up_exactly() -> bool:
    """Whether the largest possible products, in shapes that use several kernels, give exact results."""
    width, most = 256, torch.tensor(_MOST, dtype=torch.int8)
    signs = torch.tensor([1, -1], dtype=torch.int8).repeat(32)  # of the outputs
    weights = (most * signs).unsqueeze(1).repeat(1, width)
    expected = signs.int() * (width * _MOST * _MOST)
    return all(
        bool((torch._int_mm(most.repeat(rows, width), weights.t()) == expected).all()) for rows in (1, 8, 32, 512)
    )
