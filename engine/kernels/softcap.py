"""Soft-capped attention scores (Gemma 2), for both attention kernels."""

from __future__ import annotations

import math

import triton
import triton.language as tl

_LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def capped(products, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(products * SCALE / SOFTCAP): tanh(x) = 1 - 2 / (1 + e^2x), which runs into 1 and -1 where e^2x
    leaves the range."""
    return SOFTCAP - 2 * SOFTCAP / (1.0 + tl.exp2(products * (2 * SCALE / SOFTCAP * _LOG2E)))
