"""What systemd is told of a service: sd_notify(3), spoken directly, for it is one datagram."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from nproxy.upstreams.tasks import beside

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


@dataclass(frozen=True, slots=True)
class Notifier:
    """address: the socket to tell, None where nobody listens. watchdog: seconds within which WATCHDOG=1 is expected."""

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Read what systemd has put into the environment, and take it out: the children are not the service."""
        address = environ.pop("NOTIFY_SOCKET", None)
        microseconds, process = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and process in ("", str(os.getpid()))
        return cls(address or None, int(microseconds) / 1e6 if watched else None)

    def tell(self, *lines: str) -> None:
        """Send; a socket that is gone or full is systemd's affair, and no reason not to serve."""
        if self.address is None:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), address)

    def reloading(self) -> None:
        """A reload has begun; READY=1 says that it is over, whatever became of it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    @asynccontextmanager
    async def serving(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Tell of the end when `stop` is set, and of life meanwhile: WATCHDOG=1, twice as often as is expected.

        It comes from the event loop, so that a blocked one is found.
        """
        async with beside(self._beat(), self._end(stop)):
            yield

    async def _end(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.tell(STOPPING)

    async def _beat(self) -> None:
        while self.watchdog is not None:
            self.tell(WATCHDOG)
            await asyncio.sleep(self.watchdog / 2)
