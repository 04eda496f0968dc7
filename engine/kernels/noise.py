"""Random numbers of draws on the device, the same as in engine/sampling/philox.py: its uniforms are equal to the bit.

Triton has Philox 4x32-10. The logarithm is the device's own in float64, so an exponential may differ in its last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniforms(seeds, positions, STREAM: tl.constexpr, COUNT: tl.constexpr):
    """The first COUNT numbers in (0, 1) of each (seed, position), both int64 [N]; float64 [N, COUNT].

    COUNT is a power of 2, and at least 4.
    """
    lane = tl.arange(0, COUNT // 4)[None, :].to(tl.uint32)
    low, high = positions[:, None].to(tl.uint32), (positions >> 32)[:, None].to(tl.uint32)
    none = lane * 0 + low * 0  # of the shape of all
    one, two, three, four = tl.philox(seeds[:, None], none + low, none + high, none + lane, none + STREAM)
    words = tl.interleave(tl.interleave(one, three), tl.interleave(two, four))
    return (words.to(tl.float64) + 0.5) * 2.0**-32


@triton.jit
def exponentials(seeds, positions, STREAM: tl.constexpr, COUNT: tl.constexpr):
    """Standard exponential variates in the place of `uniforms`, above 0."""
    return -tl.log(uniforms(seeds, positions, STREAM, COUNT))
