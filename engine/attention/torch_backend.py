"""A CPU's backend made of torch's own operations: what a decoder asks for between its products, operation
by operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from engine.attention.compute import Attention
from engine.models.ops import Attend, SteadyOps, TorchOps
from engine.passes import Pass


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Makes the operations of each pass.

    turns: each position's rotation, [positions, D / 2]; None for models that rotate by themselves. steady: for
    deterministic mode.
    """

    attention: Attention
    turns: torch.Tensor | None
    dtype: torch.dtype
    steady: bool = False

    def ops(self, part: Pass, positions: torch.Tensor) -> TorchOps:
        """Return the operations for one pass, whose tokens are at these positions [T]."""
        attend: Attend = partial(self.attention.run, self.attention.begin(part.batch))
        if len(part.rows) > len(part.batch.rows):
            attend = partial(_attend_first, attend, len(part.batch.rows))
        turn = None if self.turns is None else self.turns[positions].unsqueeze(1)
        return (SteadyOps if self.steady else TorchOps)(attend, turn, self.dtype)


def _attend_first(
    attend: Attend, count: int, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention of the first `count` tokens; the others are padding."""
    out = q.new_zeros(len(q), q.shape[1] * q.shape[2])
    out[:count] = attend(layer, q[:count], kv[:count], sinks)
    return out
