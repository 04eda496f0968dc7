"""A kernel that writes out the random numbers that the sampler draws with, so that they can be checked."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import noise


@triton.jit  # type: ignore[untyped-decorator]
def _uniforms(seeds, positions, out, STREAM: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    draw = tl.program_id(0) + tl.arange(0, 1)
    numbers = noise.uniforms(tl.load(seeds + draw), tl.load(positions + draw), STREAM, COUNT)
    tl.store(out + draw[:, None] * COUNT + tl.arange(0, COUNT)[None, :], numbers)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, count: int, stream: int) -> torch.Tensor:
    """Return the device's uniforms of each (seed, position), both int64 [N], as float64 [N, count].

    count: a power of 2.
    """
    out = torch.full((len(seeds), count), torch.nan, dtype=torch.float64, device=seeds.device)
    _uniforms[(len(seeds),)](seeds, positions, out, STREAM=stream, COUNT=count)
    return out
