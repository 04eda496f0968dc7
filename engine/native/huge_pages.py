"""Memory in huge pages for weights: a step of few rows reads all of them, and each small page costs a look-up of its
address, which on a virtual machine is two dozen reads.

Linux calls them transparent huge pages (Documentation/admin-guide/mm/transhuge.rst); many distributions give them only
to memory that asks.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

_PAGE = 2 << 20  # bytes of a huge page on x86-64; on aarch64 with pages of 4 KiB too
_CHUNK = 16 * _PAGE  # asked for at once
_ALIGNED = 64  # bytes: a tensor begins at a line of the cache


class HugePages:
    """Places tensors one behind the other, in huge pages if the system has them."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a dense copy in such memory, which lives as long as the copy or one of its neighbours."""
        size = tensor.numel() * tensor.element_size()
        room = -(-size // _ALIGNED) * _ALIGNED
        if room > len(self._free):
            self._free = _asked(max(room, _CHUNK))
        mine, self._free = self._free[:size], self._free[room:]
        return mine.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _asked(size: int) -> torch.Tensor:
    """Return at least that many bytes from the beginning of a huge page on; what is not used takes no memory."""
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with suppress(OSError):  # it was built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _PAGE :]
