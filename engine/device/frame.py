"""A step's small arrays, named, at fixed places in one range of bytes, so that all of them go to a device
in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
"""A step's arrays by name."""

_ALIGNED = 16  # bytes: the most that a thread loads at once
_TYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.uint8): torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Field:
    """An array's type, its longest shape, and the offset of its first byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.begin + self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where each array is. Frames made with the same `first` have its arrays at the same places."""

    fields: Mapping[str, Field]
    size: int

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], first: Frame | None = None) -> Frame:
        """Return a frame in which `arrays`, or shorter ones, fit behind `first`; arrays that `first` has keep their
        places there.
        """
        fields = dict(first.fields) if first else {}
        size = first.size if first else 0
        for name, array in arrays.items():
            if name not in fields:
                fields[name] = field = Field(array.dtype, array.shape, size)
                size = -(-field.end // _ALIGNED) * _ALIGNED
        return cls(fields, size)

    def takes(self, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Whether each array has its field's type and is not longer than it in the first dimension."""
        return all(
            field.dtype == arrays[name].dtype
            and field.shape[1:] == arrays[name].shape[1:]
            and len(arrays[name]) <= field.shape[0]
            for name, field in self.fields.items()
            if name in arrays
        )

    def zeros(self) -> Arrays:
        """Return arrays of zeros that fill the frame."""
        return {name: np.zeros(field.shape, field.dtype) for name, field in self.fields.items()}

    def write(self, arrays: Mapping[str, NDArray[Any]], memory: NDArray[np.uint8]) -> None:
        """Write arrays to their places; the rest of a place that a shorter array leaves is unchanged."""
        for name, array in arrays.items():
            field = self.fields[name]
            place = memory[field.begin : field.end].view(field.dtype).reshape(field.shape)
            place[: len(array)] = array

    def arrays(self, memory: NDArray[np.uint8]) -> Arrays:
        """Return the arrays of a frame in memory [>= size], in their longest shapes, without a copy."""
        return {
            name: memory[field.begin : field.end].view(field.dtype).reshape(field.shape)
            for name, field in self.fields.items()
        }

    def views(self, memory: torch.Tensor) -> Views:
        """Return the arrays of a frame that was copied to memory [>= size] uint8."""
        return Views(self.fields, memory)


class Views(Mapping[str, torch.Tensor]):
    """A frame's arrays as tensors, in their longest shapes; made when they are asked for, because most
    steps need few.
    """

    def __init__(self, fields: Mapping[str, Field], memory: torch.Tensor) -> None:
        self._fields = fields
        self._memory = memory

    def __getitem__(self, name: str) -> torch.Tensor:
        field = self._fields[name]
        return self._memory[field.begin : field.end].view(_TYPES[field.dtype]).view(field.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)
