"""Matrices kept in the few bits that their file uses: a weight is its value times a scale plus an offset.

Scale and offset are shared by some neighbours of a row. The weights are bit for bit those that dequantizing gives: the
product of value and scale either is exact in float32 (formats of 4, 5 and 8 bits with scales of at most 17), or is not
followed by an offset, so that it does not matter whether it is rounded before the offset is added.

Shapes: O outputs, I inputs, G inputs that share a scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [O, I].

    values [O, I]: int8. scales, offsets [O, I / G]: float32. bits: 4 if all values are between 0 and 15, otherwise 8.
    """

    values: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor
    bits: int

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def group(self) -> int:
        """G."""
        return self.values.shape[1] // self.scales.shape[1]

    def ordered(self, order: torch.Tensor) -> StoredMatrix:
        """Return the rows [N] in this order; it may leave rows out or repeat them."""
        return StoredMatrix(self.values[order], self.scales[order], self.offsets[order], self.bits)

    def spread(self, group: int) -> StoredMatrix:
        """Return the same weights with `group` inputs to a scale, a divisor of G."""
        times = self.group // group
        scales, offsets = (shared.repeat_interleave(times, 1) for shared in (self.scales, self.offsets))
        return StoredMatrix(self.values, scales, offsets, self.bits)

    def floats(self) -> torch.Tensor:
        """Return the weights [O, I] float32."""
        outputs, inputs = self.shape
        grouped = self.values.float().view(outputs, -1, self.group)
        return grouped.mul_(self.scales.unsqueeze(2)).add_(self.offsets.unsqueeze(2)).view(outputs, inputs)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return some rows, numbers [N] -> [N, I] float32."""
        return self.ordered(numbers).floats()


Weights = torch.Tensor | StoredMatrix
"""A matrix [O, I]."""

Sizes = Sequence[tuple[int, int]]
"""Of each tensor of a model's files: how many numbers it has, and how many bytes they take there at least."""


def ordered(weight: Weights, order: torch.Tensor) -> Weights:
    """Return the rows [N] in this order; it may leave rows out or repeat them."""
    return weight.ordered(order) if isinstance(weight, StoredMatrix) else weight[order]


def stacked(parts: Sequence[Weights | None]) -> Weights | None:
    """Stack matrices vertically.

    None if one is missing, if tensors and stored matrices are mixed, or if tensors differ in dtype.
    """
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if len(tensors) == len(parts):
        return torch.cat(tensors) if len({tensor.dtype for tensor in tensors}) == 1 else None
    kept = [part for part in parts if isinstance(part, StoredMatrix)]
    if len(kept) < len(parts):
        return None
    bits, group = max(part.bits for part in kept), min(part.group for part in kept)
    alike = [part.spread(group) for part in kept]
    values, scales, offsets = zip(*((part.values, part.scales, part.offsets) for part in alike), strict=True)
    return StoredMatrix(torch.cat(values), torch.cat(scales), torch.cat(offsets), bits)
