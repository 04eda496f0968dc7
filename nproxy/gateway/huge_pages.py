"""Moves a gateway into huge pages: the objects that are there when it begins to serve, and the interpreter's code.

A request runs through megabytes of both. The processor looks up the address of each page of 4 KiB that it has not used
just now, on a virtual machine through two tables, and remembers far fewer than a request needs. A page of 2 MiB takes
the place of 512 (docs/adr/0060-the-gateway-in-huge-pages.md).

Linux calls them transparent huge pages (Documentation/admin-guide/mm/transhuge.rst; madvise(2), mremap(2)). Whatever it
refuses stays where it was. Nothing moves if the system's setting is `never`, although the calls used here ignore it.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path

from nproxy.config import HugePages

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_PAGEMAP = Path("/proc/self/pagemap")  # the highest bit of each entry: whether the page is in memory
_ENTRY = 8  # bytes
_MOST_SECONDS = 0.2  # memory in many pieces takes longer; what has not moved by then stays where it is

_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE_AND_ANONYMOUS = 0x22
_HUGE, _COLLAPSE = 14, 25  # advice: by the next access; now, whatever is there (since Linux 6.1)
_MOVE_TO_THE_ADDRESS = 3
_FAILED = ctypes.c_void_p(-1).value

log = logging.getLogger("nproxy.gateway")


@dataclass(frozen=True, slots=True)
class Moved:
    """How many bytes have moved. code: of the interpreter."""

    objects: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A line of /proc/self/maps. allows: the permissions, such as "r-xp". of: the file, or "[heap]", or ""."""

    begin: int
    end: int
    allows: str
    of: str


def move(what: HugePages) -> Moved:
    """Move what `listen.huge_pages` says, before the first request."""
    try:
        if what == "none" or "[never]" in (SETTINGS / "enabled").read_text(encoding="ascii"):
            return Moved()
        size = int((SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
        mappings = list(_mappings())
        used = _used(mappings, size)
    except (OSError, ValueError):  # not Linux, or built without them
        return Moved()
    libc = _libc()
    objects, until = 0, time.monotonic() + _MOST_SECONDS
    for pages in used:
        if time.monotonic() < until and libc.madvise(pages.start, len(pages) * size, _COLLAPSE) == 0:
            objects += len(pages) * size
    code = _move_code(libc, _code(mappings, size)) if what == "all" else 0
    log.debug("moved into huge pages", extra={"fields": {"objects_bytes": objects, "code_bytes": code}})
    return Moved(objects, code)


def _mappings() -> Iterator[_Mapping]:
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, allows, _offset, _device, _inode, *of = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in addresses.split("-"))
        yield _Mapping(begin, end, allows, of[0] if of else "")


def _whole_pages(begin: int, end: int, size: int) -> range:
    """Return the addresses of the huge pages between two addresses."""
    return range(-(-begin // size) * size, end // size * size, size)


def _libc() -> ctypes.CDLL:
    """Return the C library, with what its functions take and return. Addresses are integers."""
    libc = ctypes.CDLL(None)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = (pointer, size, number, number, number, ctypes.c_long), pointer
    libc.mremap.argtypes, libc.mremap.restype = (pointer, size, size, number, pointer), pointer
    libc.munmap.argtypes = (pointer, size)
    libc.mprotect.argtypes = libc.madvise.argtypes = (pointer, size, number)
    return libc


def _used(mappings: Sequence[_Mapping], size: int) -> list[range]:
    """Return the huge pages, as far as they follow each other, that objects fill now.

    The rest, as of a thread's stack, would be given memory by moving. It is read from /proc, because a service that may
    make the system calls of services only (systemd's `@system-service`) is killed for mincore(2).
    """
    ours = [mapping for mapping in mappings if mapping.allows == "rw-p" and mapping.of in ("", "[heap]")]
    small = size // PAGESIZE
    runs: list[range] = []
    with _PAGEMAP.open("rb", buffering=0) as pagemap:
        for mapping in ours:
            for page in _whole_pages(mapping.begin, mapping.end, size):
                pagemap.seek(page // PAGESIZE * _ENTRY)
                there = sum(flags >> 7 for flags in pagemap.read(small * _ENTRY)[_ENTRY - 1 :: _ENTRY])
                if there < 0.75 * small:
                    continue
                if runs and runs[-1].stop == page:
                    runs[-1] = range(runs[-1].start, page + size, size)
                else:
                    runs.append(range(page, page + size, size))
    return runs


def _move_code(libc: ctypes.CDLL, pages: range) -> int:
    """Put a copy in huge pages in the place of the interpreter's code, and return how many bytes that are.

    The code that does so is itself among what is replaced. It notices nothing: the kernel puts the copy there in one
    step, and the copy is the same.
    """
    if not pages or platform.machine() != "x86_64":  # other processors must be told that what was written is code
        return 0
    size, begin, length = pages.step, pages.start, len(pages) * pages.step
    room = libc.mmap(None, length + size, _READ | _WRITE, _PRIVATE_AND_ANONYMOUS, -1, 0)
    if room == _FAILED:
        return 0
    copy = -(-room // size) * size
    libc.madvise(copy, length, _HUGE)
    ctypes.memmove(copy, begin, length)
    moved = (
        libc.madvise(copy, length, _COLLAPSE) == 0
        and libc.mprotect(copy, length, _READ | _EXECUTE) == 0  # a hardened system lets nothing written be executed
        and libc.mremap(copy, length, length, _MOVE_TO_THE_ADDRESS, begin) == begin
    )
    libc.munmap(room, copy - room)
    libc.munmap(copy + length, room + size - copy)
    if not moved:
        libc.munmap(copy, length)
    return length if moved else 0


def _code(mappings: Sequence[_Mapping], size: int) -> range:
    """Return the huge pages inside the interpreter's code, together with the constants before and behind it."""
    function = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
    first = last = next(place for place, mapping in enumerate(mappings) if mapping.begin <= function < mapping.end)
    while first and _continues(mappings[first - 1], mappings[first]):
        first -= 1
    while last + 1 < len(mappings) and _continues(mappings[last], mappings[last + 1]):
        last += 1
    return _whole_pages(mappings[first].begin, mappings[last].end, size)


def _continues(one: _Mapping, other: _Mapping) -> bool:
    """Whether the second mapping goes on where the first ends, of the same file, and both can be read, not written."""
    return one.end == other.begin and one.of == other.of and all(each.allows[:2] == "r-" for each in (one, other))
