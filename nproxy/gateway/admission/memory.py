"""Memory as a limit: what the process holds, what bodies in it may hold, and what the machine or its container has."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nproxy.config import Config

SHARE = 0.8
"""Of what there is, so much may be held; among all workers."""
BODIES_SHARE = 0.25
"""Of what may be held, so much may be bodies of requests."""
LOOK_SECONDS = 0.25

_STATM = Path("/proc/self/statm")
_CGROUPS = Path("/sys/fs/cgroup")


class MemoryFull(Exception):
    """More bodies would be more than there is room for."""


class Memory:
    """Whether the process holds more than `limit` bytes; looked up a few times a second at most.

    limit: None where nothing limits. read: gives the bytes that the process holds.
    """

    def __init__(self, limit: int | None, read: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._read = read or resident
        self._over = False
        self._looked = -LOOK_SECONDS

    def over(self, now: float) -> bool:
        """Whether no more work should be taken."""
        if self.limit is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            with suppress(OSError):  # where no file can be opened any more, what was found last holds
                self._over = self._read() > self.limit
        return self._over and self.limit is not None


class Bodies:
    """The bytes of the requests in this process, and how many they may be: None for any number."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.held = 0

    def hold(self) -> MemoryReservation:
        """Count one request's body until its `release`."""
        return MemoryReservation(self)


class MemoryReservation:
    """What one request's body holds."""

    __slots__ = ("_bodies", "size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.size = 0

    def release(self) -> None:
        """The body is no more."""
        self._bodies.held -= self.size

    def expect(self, size: int) -> None:
        """It will be so many bytes, by its sender's word. Raises MemoryFull where there is no room for them now.

        Nothing is kept free for them: who sends slowly, or not at all, would keep it from all others.
        """
        bodies = self._bodies
        more = size - self.size
        if bodies.limit is not None and more > 0 and bodies.held > self.size and bodies.held + more > bodies.limit:
            raise MemoryFull

    def reach(self, size: int) -> None:
        """It is so many bytes. Raises MemoryFull, unless it is the only one: that has to be possible."""
        if size > self.size:
            self.expect(size)
            self._bodies.held += size - self.size
            self.size = size


def limit_of(config: Config) -> int | None:
    """The bytes that this process may hold; None on systems that do not tell what it holds."""
    if not _STATM.exists():  # elsewhere only the most that it ever held can be learned, which never gets less
        return None
    if config.limits.memory_mib is not None:
        return config.limits.memory_mib << 20
    return int(SHARE * available() / config.listen.workers)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that the machine has, or the least that a control group around this process may have (v1 or v2)."""
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
            except (OSError, ValueError):  # no such group as seen from here, or "max"
                continue
    return least
