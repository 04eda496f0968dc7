"""Draws in the form that the sampling kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine.kernels.draw_table import BLOCK, DRAW
from engine.kernels.sample_row import block_sums, sample_row
from engine.kernels.topk_topp import topk_topp

_LINE = {"row": 0, "same": 0, "temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "position": 0}


def table(lines: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Return lines of DRAW; each has its own distribution, unless `same` names another line's."""
    packed = np.array([tuple((_LINE | {"same": i} | line).values()) for i, line in enumerate(lines)], dtype=DRAW)
    return torch.from_numpy(packed.view(np.int64).reshape(len(lines), -1))


def sums(
    logits: torch.Tensor, draws: torch.Tensor, edited: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best score and the sum of weights of each block of each line."""
    best = torch.full((len(draws), -(-logits.shape[1] // BLOCK)), torch.nan)
    weights = torch.full_like(best, torch.nan)
    block_sums(logits, edited, draws, best, weights)
    return best, weights


def lowest(logits: torch.Tensor, draws: torch.Tensor, edited: torch.Tensor | None = None) -> torch.Tensor:
    """Return the lowest score that each line keeps."""
    return topk_topp(logits, edited, draws, sums(logits, draws, edited)[0])


def drawn(
    logits: torch.Tensor, draws: torch.Tensor, edited: torch.Tensor | None = None, *, cuts: bool = False
) -> tuple[list[int], list[int]]:
    """Return each line's token, or the reason why it has none, and the tokens with which the next step would begin."""
    first = draws[: int(draws[:, 1].max()) + 1]  # includes all distributions; fewer lines are faster to interpret
    best, weights = sums(logits, first, edited)
    kept = None
    if cuts:
        kept = topk_topp(logits, edited, first, best)
        block_sums(logits, edited, first, best, weights, kept)
    given = torch.full((len(draws),), -9, dtype=torch.int32)
    tokens = torch.full((len(draws),), -9, dtype=torch.int64)
    sample_row(logits, edited, draws, best, weights, given, tokens, kept)
    return given.tolist(), tokens.tolist()
