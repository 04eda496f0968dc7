"""The way of a step's small arrays to the device, and of what it gives back: through pinned memory, without waiting.

A step's arrays, or a pass's where it has several, go over in one copy, from a pinned buffer that the device is not to
read any more: two take turns where steps have one pass, and more come where they have several. On the device there is
one: a copy stands in the same queue as what reads it. Recorded steps find their arrays at the same addresses, so it
does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.device.frame import Arrays, Frame, Views


class Mark(Protocol):
    """A place in a device's queue of work that can be waited for."""

    def record(self) -> None:
        """Put it behind all that is queued now."""
        ...

    def query(self) -> bool:
        """Whether all before it is done; true before it is put anywhere."""
        ...

    def synchronize(self) -> None:
        """Wait until all before it is done."""
        ...


class Nothing:
    """The mark of a device that is done with everything when it returns."""

    def record(self) -> None:
        """Nothing is queued."""

    def query(self) -> bool:
        """All is done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


def mark(device: torch.device) -> Mark:
    """A new mark."""
    return torch.cuda.Event() if device.type == "cuda" else Nothing()  # type: ignore[no-untyped-call]


def pinned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host memory that the device copies from and to by itself."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class _Side:
    """One pinned buffer, and when the device has read it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = pinned((size,), torch.uint8, device).zero_()  # what no array fills is sent too
        self.read = mark(device)


class Buffers:
    """Sends frames to one place on a device. What a frame's views hold is good until the next one is sent."""

    def __init__(self, size: int, device: torch.device) -> None:
        """`size`: bytes of the frames that stay in place."""
        self._device = device
        self._place = torch.empty(size, dtype=torch.uint8, device=device)
        self._sides = [_Side(size, device), _Side(size, device)]

    def fits(self, frame: Frame) -> bool:
        """Whether a frame stays in place; one that does not is sent to memory of its own."""
        return frame.size <= len(self._place)

    def send(self, frame: Frame, arrays: Arrays) -> Views:
        """Copy a frame to the device, behind all that is queued there; gives its views."""
        side = self._side(frame.size)
        frame.write(arrays, side.memory.numpy())
        place = self._place if self.fits(frame) else torch.empty(frame.size, dtype=torch.uint8, device=self._device)
        place[: frame.size].copy_(side.memory[: frame.size], non_blocking=True)
        side.read.record()
        return frame.views(place)

    def _side(self, size: int) -> _Side:
        """A buffer that nothing queued reads: who waited for one would wait for steps that nobody has asked for."""
        free = [side for side in self._sides if side.read.query()]
        found = next((side for side in free if len(side.memory) >= size), None)
        if found is None:  # those that are free are too small for some steps: let go of them
            found = _Side(size, self._device)
            self._sides = [side for side in self._sides if side not in free] + [found]
        return found


class Fetched:
    """A tensor on its way to the host."""

    def __init__(self, there: torch.Tensor) -> None:
        self._here = pinned(there.shape, there.dtype, there.device)
        self._here.copy_(there, non_blocking=True)
        self._ready = mark(there.device)
        self._ready.record()

    def tensor(self) -> torch.Tensor:
        """The tensor, once it is there: waits for what was queued before it was asked for, and no longer."""
        self._ready.synchronize()
        return self._here
