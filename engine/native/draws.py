"""Draws in C: the random numbers of sampling/philox.py, which take over a hundred torch operations there, and draws
from distributions that are not cut. For the latter sampling/draw.py needs a dozen operations, whose code is no longer
in the caches after the layers ran.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.batch import STUCK, Draw, Stuck
from engine.native.build import Kernels
from engine.sampling.draw import Exponentials, FromWhole


def exponentials(kernels: Kernels) -> Exponentials:
    """Return a function like `exponentials` of sampling/philox.py, equal up to the last bit of the logarithm."""

    def drawn(seeds: torch.Tensor, positions: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
        streams = [torch.empty(len(seeds), count, dtype=torch.float64) for count in counts]
        for stream, out in enumerate(streams):
            kernels.exponentials(seeds.data_ptr(), positions.data_ptr(), out.data_ptr(), *out.shape, stream)
        return streams

    return drawn


def from_whole(kernels: Kernels) -> FromWhole:
    """Return a function that draws from scores [N, V] of the kernels' dtype.

    It returns None for another dtype: a transformers class may give float32 in a model of bfloat16.
    """

    def drawn(scores: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int | Stuck] | None:
        if scores.dtype != kernels.dtype:
            return None
        whole = torch.tensor([rows, [draw.seed for draw in draws], [draw.position for draw in draws]])
        which, seeds, positions = (whole.data_ptr() + 8 * len(rows) * i for i in range(3))
        temperatures = torch.tensor([draw.sampling.temperature for draw in draws], dtype=torch.float32)
        out = torch.empty(len(rows), dtype=torch.int64)
        scores = scores.contiguous()
        kernels.draws(
            scores.data_ptr(),
            which,
            seeds,
            positions,
            temperatures.data_ptr(),
            out.data_ptr(),
            len(rows),
            scores.shape[1],
        )
        tokens: list[int] = out.tolist()
        if min(tokens) < min(STUCK):
            raise MemoryError("there is not enough memory for the weights of a vocabulary")
        return [token if token >= 0 else STUCK[token] for token in tokens]

    return drawn
