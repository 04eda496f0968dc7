"""Copies a step's small arrays to the device, and its results back, through pinned memory, without waiting.

The arrays of a step (of each pass, if it has several) go over in one copy, from a pinned buffer that the device no
longer reads. Two buffers alternate if steps have one pass; more are added if they have several. On the device there is
one buffer: a copy is in the same queue as the kernels that read it. Recorded steps need their arrays at the same
addresses, so that buffer does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.device.frame import Arrays, Frame, Views


class Mark(Protocol):
    """A point in a device's queue of work that can be waited for."""

    def record(self) -> None:
        """Place it after everything that is queued now."""
        ...

    def query(self) -> bool:
        """Whether everything before it is done; true before it is placed."""
        ...

    def synchronize(self) -> None:
        """Wait until everything before it is done."""
        ...


class Nothing:
    """The mark of a device whose calls return only when everything is done."""

    def record(self) -> None:
        """Do nothing: nothing is queued."""

    def query(self) -> bool:
        """True: everything is done."""
        return True

    def synchronize(self) -> None:
        """Return at once: there is nothing to wait for."""


def mark(device: torch.device) -> Mark:
    """Return a new mark."""
    return torch.cuda.Event() if device.type == "cuda" else Nothing()  # type: ignore[no-untyped-call]


def pinned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return host memory that the device can copy from and to by itself."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class _Side:
    """One pinned buffer, and a mark of when the device has read it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = pinned((size,), torch.uint8, device).zero_()  # bytes that no array fills are sent too
        self.read = mark(device)

    def send(self, place: torch.Tensor, size: int) -> None:
        """Queue a copy of the first bytes."""
        place[:size].copy_(self.memory[:size], non_blocking=True)
        self.read.record()


class Buffers:
    """Sends frames to one place on a device. A frame's views are valid until the next one is sent."""

    def __init__(self, size: int, device: torch.device) -> None:
        """`size`: the most bytes of a frame that goes to the fixed place."""
        self._device = device
        self._place = torch.empty(size, dtype=torch.uint8, device=device)
        self._sides = [_Side(size, device), _Side(size, device)]

    def fits(self, frame: Frame) -> bool:
        """Whether a frame goes to the fixed place; one that does not is sent to memory of its own."""
        return frame.size <= len(self._place)

    def send(self, frame: Frame, arrays: Arrays) -> Views:
        """Copy a frame to the device, after everything that is queued there; return its views."""
        side = self._side(frame.size)
        frame.write(arrays, side.memory.numpy())
        place = self._place if self.fits(frame) else torch.empty(frame.size, dtype=torch.uint8, device=self._device)
        side.send(place, frame.size)
        return frame.views(place)

    def send_image(self, image: NDArray[np.uint8]) -> None:
        """Copy a frame to the fixed place as `send` does; image: its bytes."""
        side = self._side(len(image))
        side.memory.numpy()[: len(image)] = image
        side.send(self._place, len(image))

    def views(self, frame: Frame) -> Views:
        """Return the views of any frame that is sent to the fixed place."""
        return frame.views(self._place)

    def _side(self, size: int) -> _Side:
        """Return a buffer that nothing queued reads: waiting for one would mean waiting for steps whose results are not
        due.
        """
        free = [side for side in self._sides if side.read.query()]
        found = next((side for side in free if len(side.memory) >= size), None)
        if found is None:  # the free ones are too small for some steps: drop them
            found = _Side(size, self._device)
            self._sides = [side for side in self._sides if side not in free] + [found]
        return found


class Fetched:
    """A tensor being copied to the host."""

    def __init__(self, there: torch.Tensor) -> None:
        self._here = pinned(there.shape, there.dtype, there.device)
        self._here.copy_(there, non_blocking=True)
        self._ready = mark(there.device)
        self._ready.record()

    def tensor(self) -> torch.Tensor:
        """Return the tensor once it is there. Waits for what was queued before the copy, and no longer."""
        self._ready.synchronize()
        return self._here
