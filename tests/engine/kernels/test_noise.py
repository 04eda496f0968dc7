"""The device's random numbers: to the bit those that the CPU draws with."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels import noise
from engine.sampling import philox

_LONGEST = 2**63 - 1
_SEEDS = torch.tensor([0, 1, -1, 42, 2**32, -(2**32) - 7, _LONGEST, -_LONGEST - 1])
_POSITIONS = torch.tensor([0, 2**40 + 5, 7, 2**32 - 1, 2**33, 1, _LONGEST, -3])


@triton.jit  # type: ignore[untyped-decorator]
def _numbers(  # type: ignore[no-untyped-def]
    seeds, positions, out, SPREAD: tl.constexpr, STREAM: tl.constexpr, DRAWS: tl.constexpr, COUNT: tl.constexpr
):
    draw = tl.program_id(0) * DRAWS + tl.arange(0, DRAWS)
    seed, position = tl.load(seeds + draw), tl.load(positions + draw)
    if SPREAD:
        numbers = noise.exponentials(seed, position, STREAM, COUNT)
    else:
        numbers = noise.uniforms(seed, position, STREAM, COUNT)
    tl.store(out + draw[:, None] * COUNT + tl.arange(0, COUNT)[None, :], numbers)


def _made(count: int, stream: int, *, spread: bool, draws: int = 8) -> torch.Tensor:
    out = torch.empty(len(_SEEDS), count, dtype=torch.float64)
    _numbers[(len(_SEEDS) // draws,)](_SEEDS, _POSITIONS, out, SPREAD=spread, STREAM=stream, DRAWS=draws, COUNT=count)
    return out


@pytest.mark.parametrize(("count", "stream"), [(4, 0), (256, 1), (1024, 0)])
def test_uniforms_bit_for_bit(count: int, stream: int) -> None:
    assert torch.equal(_made(count, stream, spread=False), philox.uniforms(_SEEDS, _POSITIONS, count, stream))


def test_alone_and_together_bit_for_bit() -> None:
    assert torch.equal(_made(16, 0, spread=False, draws=1), _made(16, 0, spread=False))


def test_exponentials_to_the_last_bit_of_a_logarithm() -> None:
    expected = philox.exponentials(_SEEDS, _POSITIONS, (7, 256))[1]
    torch.testing.assert_close(_made(256, 1, spread=True), expected, rtol=2**-51, atol=0)
