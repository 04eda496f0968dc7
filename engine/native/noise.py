"""The draws' random numbers in C: those of kernels/philox.py, which takes over a hundred operations for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.native.build import Kernels
from engine.sampling.draw import Exponentials


def exponentials(kernels: Kernels) -> Exponentials:
    """As kernels/philox.py has them, up to the last bit of the logarithm."""

    def drawn(seeds: torch.Tensor, positions: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
        told = [torch.empty(len(seeds), count, dtype=torch.float64) for count in counts]
        for stream, out in enumerate(told):
            kernels.exponentials(seeds.data_ptr(), positions.data_ptr(), out.data_ptr(), *out.shape, stream)
        return told

    return drawn
