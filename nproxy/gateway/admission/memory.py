"""Limits on memory: of the process, and of the request bodies in it, by what the machine or its container has."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from nproxy.config import Config

SHARE = 0.8
"""The share of the available memory that all workers together may hold."""
BODIES_SHARE = 0.25
"""The share of that limit that request bodies may hold."""
LOOK_SECONDS = 0.25
"""The least time between two measurements."""

_STATM = Path("/proc/self/statm")
_CGROUPS = Path("/sys/fs/cgroup")


class Memory:
    """Watches whether the process holds more than `limit` bytes; measured a few times a second at most.

    limit: None if there is no limit. read: returns the bytes that the process holds.
    """

    def __init__(self, limit: int | None, read: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._read = read or resident
        self._over = False
        self._looked = -LOOK_SECONDS

    def over(self, now: float) -> bool:
        """Whether the process holds too much to accept more work."""
        if self.limit is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            with suppress(OSError):  # out of file descriptors: the last measurement stands
                self._over = self._read() > self.limit
        return self._over and self.limit is not None


class Bodies:
    """Counts the bytes of request bodies in this process, for each caller. limit: the most they may be; None for none.

    full: makes the error for a body for which there is no room.

    Several bodies of one caller may hold no more than they leave free (Choudhury and Hahne, Dynamic Queue Length
    Thresholds, 1998). So whoever fills the memory, slowly or at once, gets half of it; and callers that all want more
    than there is get equal parts and leave one such part to the next.
    """

    def __init__(self, limit: int | None, full: Callable[[], Exception]) -> None:
        self.limit = limit
        self.held = 0
        self._full = full
        self._callers: dict[str, int] = {}  # by bucket; none that hold nothing

    def expect(self, bucket: str, size: int, more: int) -> int:
        """Return what the caller holds. Raises an error if a body of `size` bytes may not grow by `more`.

        It may if it is the only one.
        """
        own = self._callers.get(bucket, 0)
        if self.limit is not None and self.held > size:
            free = self.limit - self.held - more
            if free < 0 or (own > size and own + more > free):
                raise self._full()
        return own

    def grow(self, bucket: str, size: int, more: int) -> None:
        """Count more bytes of a body of `size` bytes. Raises an error if there is no room for them."""
        self._callers[bucket] = self.expect(bucket, size, more) + more
        self.held += more

    def release(self, bucket: str, size: int) -> None:
        """Note that a body is no longer held."""
        self.held -= size
        own = self._callers.pop(bucket) - size
        if own:
            self._callers[bucket] = own


class MemoryReservation:
    """The memory that one request's body holds while the block runs. size: bytes so far."""

    __slots__ = ("_bodies", "_bucket", "size")

    def __init__(self, bodies: Bodies, bucket: str) -> None:
        """bucket: of the request's caller."""
        self._bodies = bodies
        self._bucket = bucket
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.size:
            self._bodies.release(self._bucket, self.size)

    def expect(self, size: int) -> None:
        """Raise an error if there is no room now for a body of the announced size.

        No memory is reserved for it: a client that sends slowly, or not at all, would keep it from all others.
        """
        if size > self.size:
            self._bodies.expect(self._bucket, self.size, size - self.size)

    def reach(self, size: int) -> None:
        """Count a body that has so many bytes now. Raises an error if there is no room, unless it is the only body."""
        if (more := size - self.size) > 0:
            self._bodies.grow(self._bucket, self.size, more)
            self.size = size


def limit_of(config: Config) -> int | None:
    """Return the bytes that this process may hold; None on systems that do not report its current size."""
    if not _STATM.exists():  # other systems report only the peak, which never decreases
        return None
    if config.limits.memory_mib is not None:
        return config.limits.memory_mib << 20
    return int(SHARE * available() / config.listen.workers)


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes of the machine, or the least limit of a control group around this process (v1 or v2)."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = Path(path.lstrip("/"))
        for folder in (place, *place.parents):
            try:
                least = min(least, int((root / folder / name).read_text()))
            except (OSError, ValueError):  # the group is not visible from here, or its limit is "max"
                continue
    return least
