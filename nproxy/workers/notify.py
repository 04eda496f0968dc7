"""Notifies systemd about the service. It sends sd_notify(3) messages directly, as each is just one datagram."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from nproxy.concurrency.tasks import beside

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends notifications to systemd.

    address: the socket to notify; None if there is none. watchdog: systemd expects WATCHDOG=1 within so many seconds;
    None if it does not.
    """

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Read systemd's variables, and remove them from the environment, because children must not notify systemd."""
        address = environ.pop("NOTIFY_SOCKET", None)
        microseconds, process = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = microseconds.isdecimal() and process in ("", str(os.getpid()))
        seconds = int(microseconds) / 1e6 if watched else 0.0
        return cls(address or None, seconds or None)

    def tell(self, *lines: str) -> None:
        """Send a notification. Errors are ignored: a socket that is gone or full is no reason not to serve."""
        if self.address is None:
            return
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), address)

    def reloading(self) -> None:
        """Tell systemd that a reload has begun. READY=1 says that it is over, whatever its outcome."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    @asynccontextmanager
    async def serving(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """While the block runs, send WATCHDOG=1 twice as often as expected; send STOPPING=1 when `stop` is set.

        The event loop sends them, so that systemd detects a blocked one.
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
