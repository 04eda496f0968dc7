"""Weights in huge pages: the same numbers, in memory that has asked for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from engine.native.huge_pages import HugePages

MIB = 1 << 20


def flags(address: int) -> list[str]:
    """Return the kernel's flags of the mapping that an address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        words = line.split()
        if "-" in words[0]:
            begin, end = (int(part, 16) for part in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == "VmFlags:":
            return words[1:]
    raise LookupError(hex(address))


def test_tensors_keep_their_numbers_beside_each_other() -> None:
    pages = HugePages()
    shapes = [(1,), (3, 5), (576, 1536), (1 << 22, 3), (7, 9), (9 * MIB,), (2, 2)]
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(at)) for at, shape in enumerate(shapes)]
    given[2] = given[2].bfloat16()
    given[4] = given[4].view(torch.uint8)
    moved = [pages.moved(tensor) for tensor in given]
    for mine, theirs in zip(moved, given, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() % 64 == 0
    pages.moved(torch.zeros(MIB))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(moved, given, strict=True)), "nothing overlaps"


def test_a_view_becomes_dense() -> None:
    view = torch.arange(24).view(4, 6).T
    moved = HugePages().moved(view)
    assert moved.is_contiguous()
    assert torch.equal(moved, view)


def test_small_tensors_share_a_page() -> None:
    pages = HugePages()
    first, second = pages.moved(torch.zeros(16)), pages.moved(torch.zeros(16))
    assert first.data_ptr() % (2 * MIB) == 0
    assert second.data_ptr() == first.data_ptr() + 64


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages")
@pytest.mark.parametrize("size", [1, 3 * MIB, 40 * MIB])
def test_the_memory_asks_for_huge_pages(size: int) -> None:
    moved = HugePages().moved(torch.ones(size, dtype=torch.uint8))
    assert sys.platform == "linux"
    for at in (0, size - 1):
        told = flags(moved.data_ptr() + at)
        assert "hg" in told
        assert "sh" not in told, "shared memory has a setting of its own, which is usually never"
