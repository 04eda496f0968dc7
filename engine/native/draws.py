"""Draws in C: the random numbers of sampling/philox.py, which take over a hundred torch operations there, and the draws
of sampling/draw.py, which take dozens, whose code is no longer in the caches after the layers ran.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.batch import STUCK, Draw, Stuck
from engine.native.build import Kernels
from engine.sampling.draw import Exponentials, FromScores, greedy


def exponentials(kernels: Kernels) -> Exponentials:
    """Return a function like `exponentials` of sampling/philox.py, equal up to the last bit of the logarithm."""

    def drawn(seeds: torch.Tensor, positions: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
        streams = [torch.empty(len(seeds), count, dtype=torch.float64) for count in counts]
        for stream, out in enumerate(streams):
            kernels.exponentials(seeds.data_ptr(), positions.data_ptr(), out.data_ptr(), *out.shape, stream)
        return streams

    return drawn


def from_scores(kernels: Kernels) -> FromScores:
    """Return a function that draws from scores [N, V], float32 or of the kernels' dtype; it returns None for others."""

    def drawn(scores: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int | Stuck] | None:
        if scores.dtype not in (torch.float32, kernels.dtype):
            return None
        settings = [draw.sampling for draw in draws]
        temperatures = [0.0 if greedy(one) else one.temperature for one in settings]
        seeds, positions = [draw.seed for draw in draws], [draw.position for draw in draws]
        whole = torch.tensor([rows, seeds, positions, [one.top_k for one in settings]])
        real = torch.tensor(
            [temperatures, [one.min_p for one in settings], [one.top_p for one in settings]],
            dtype=torch.float64,
        )
        out = torch.empty(len(rows), dtype=torch.int64)
        scores = scores.contiguous()
        kernels.draws(
            scores.data_ptr(),
            scores.dtype == torch.float32,
            whole.data_ptr(),
            real.data_ptr(),
            out.data_ptr(),
            len(rows),
            scores.shape[1],
        )
        tokens: list[int] = out.tolist()
        if min(tokens) < min(STUCK):
            raise MemoryError("there is not enough memory for the weights of a vocabulary")
        return [token if token >= 0 else STUCK[token] for token in tokens]

    return drawn
