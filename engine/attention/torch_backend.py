"""A CPU's backend made of torch's own operations: what a model asks for between its products, operation by
operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from engine.attention.compute import Attention
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.models.ops import Attend, DeterministicOps, TorchOps
from engine.passes import Pass


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Runs passes through one model.

    rotations: each position's rotation, [positions, D / 2]; None for models that rotate by themselves.
    """

    kernels: ClassVar = "torch"
    model: Model
    attention: Attention
    rotations: torch.Tensor | None
    dtype: torch.dtype
    deterministic: bool = False

    def run(
        self, part: Pass, tokens: torch.Tensor, positions: torch.Tensor, adapted: Sequence[TokensOf]
    ) -> torch.Tensor:
        """Run a pass through all layers, like Model.run."""
        return self.model.run(tokens, positions, self._ops(part, positions), adapted)

    def _ops(self, part: Pass, positions: torch.Tensor) -> TorchOps:
        attend: Attend = partial(self.attention.run, self.attention.begin(part.batch))
        if len(part.rows) > len(part.batch.rows):
            attend = partial(_attend_first, attend, len(part.batch.rows))
        rotation = None if self.rotations is None else self.rotations[positions].unsqueeze(1)
        return (DeterministicOps if self.deterministic else TorchOps)(attend, rotation, self.dtype)


def _attend_first(
    attend: Attend, count: int, layer: int, q: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention of the first `count` tokens; the others are padding."""
    out = q.new_zeros(len(q), q.shape[1] * q.shape[2])
    out[:count] = attend(layer, q[:count], kv[:count], sinks)
    return out
