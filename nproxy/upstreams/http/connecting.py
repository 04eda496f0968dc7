"""New connections: name lookup, addresses tried side by side, TLS."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from aiohappyeyeballs import AddrInfoType, start_connection

from nproxy.upstreams.http.connection import Connection
from nproxy.upstreams.http.errors import ConnectError, ConnectTimeoutError, LateError
from nproxy.upstreams.lookup import NO_ADDRESS, look_up

log = logging.getLogger("nproxy.upstreams")

NAME_SECONDS = 10.0
"""How long the addresses of a name are used without another lookup."""
SLOW_SECONDS = 0.25
"""How long such a lookup may take before the old addresses are used instead."""
FORGET_SECONDS = 300.0
"""How long old addresses are kept after their last use."""
NEXT_ADDRESS_SECONDS = 0.25
"""If an address does not answer for so long, the next one is tried beside it (RFC 8305)."""
TLS_END_SECONDS = 1.0
"""How long a server may take to answer the end of TLS. Meanwhile its connection counts as open."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where connections go: a Unix socket, or a host and port.

    server_name: the name that the certificate must be for; None for no TLS.
    """

    path: Path | None
    host: str
    port: int
    server_name: str | None


@dataclass(slots=True)
class _Known:
    """The addresses of one name, the next to be tried first; none before the first lookup has succeeded.

    until: when they are old. used: when they were wanted last. lookup: the one that is under way, for all who want the
    name. began: when it did. Times are the loop's.
    """

    addresses: deque[AddrInfoType] = field(default_factory=deque)
    until: float = -inf
    used: float = -inf
    lookup: asyncio.Future[list[AddrInfoType]] | None = None
    began: float = -inf

    def look(self, host: str, port: int) -> asyncio.Future[list[AddrInfoType]]:
        """Return the lookup that is under way; start one if there is none."""
        if self.lookup is None:
            self.lookup, self.began = look_up(host, port), asyncio.get_running_loop().time()
            self.lookup.add_done_callback(self._found)
        return self.lookup

    def _found(self, lookup: asyncio.Future[list[AddrInfoType]]) -> None:
        """Take a result. While resolvers fail, old addresses stay, unless one knows that the name has none."""
        self.lookup = None
        if lookup.cancelled():
            return
        now, error = asyncio.get_running_loop().time(), lookup.exception()
        if error is None:
            self.addresses, self.until = deque(lookup.result()), now + NAME_SECONDS
        elif isinstance(error, socket.gaierror) and error.errno in NO_ADDRESS:
            self.addresses.clear()
        else:
            self.until = now + SLOW_SECONDS


class Connector:
    """Opens connections.

    Names are looked up again after NAME_SECONDS. A slow resolver then costs SLOW_SECONDS at most.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}
        self._trusted: ssl.SSLContext | None = None

    async def connect(self, connection: Connection, to: Destination, seconds: float | None, deadline: float) -> None:
        """Open a connection within so many seconds, and before `deadline`, in the loop's time.

        Raises ConnectError, ConnectTimeoutError, LateError.
        """
        patience = inf if seconds is None else seconds
        own = asyncio.get_running_loop().time() + patience
        soonest = min(own, deadline)
        try:
            async with asyncio.timeout_at(soonest if soonest < inf else None) as limit:
                await self._connect(connection, to)
        except BaseException as error:
            connection.abort()
            match error:
                case TimeoutError() if limit.expired():
                    raise ConnectTimeoutError(patience) if own <= deadline else LateError from error
                case socket.gaierror():
                    raise ConnectError("name", error) from error
                case ssl.SSLError():
                    raise ConnectError("tls", error) from error
                case OSError():
                    raise ConnectError("refused", error) from error
                case ValueError():
                    raise ConnectError("address") from error  # not a name that can be looked up
            raise

    async def _connect(self, connection: Connection, to: Destination) -> None:
        loop = asyncio.get_running_loop()
        if to.path is not None:
            await loop.create_unix_connection(lambda: connection, str(to.path))
            return
        context = None if to.server_name is None else await self._context()
        addresses = await self._addresses(to.host, to.port)
        sock = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS)
        await loop.create_connection(
            lambda: connection,
            sock=sock,
            ssl=context,
            server_hostname=to.server_name,
            ssl_shutdown_timeout=None if context is None else TLS_END_SECONDS,
        )

    async def _context(self) -> ssl.SSLContext:
        """The TLS settings. They are read in a thread, once."""
        if self._trusted is None:
            try:
                self._trusted = await asyncio.to_thread(trusted)
            except RuntimeError as error:
                raise OSError(errno.ENOMEM, "no thread can be started") from error
        return self._trusted

    async def _addresses(self, host: str, port: int) -> list[AddrInfoType]:
        """All addresses of a host, each time starting with another one."""
        if (literal := _literal(host, port)) is not None:
            return [literal]
        loop = asyncio.get_running_loop()
        self._forget(now := loop.time())
        known = self._known.setdefault((host, port), _Known())
        known.used = now
        if known.until <= now or not known.addresses:
            lookup = known.look(host, port)
            if known.addresses:
                await asyncio.wait((lookup,), timeout=max(0.0, known.began + SLOW_SECONDS - now))
            if not known.addresses:
                found = await asyncio.shield(lookup)
                if not known.addresses:  # it ended in this iteration of the loop, before `_found` was called
                    return found
        addresses = list(known.addresses)
        known.addresses.rotate(-1)
        return addresses

    def _forget(self, now: float) -> None:
        for name, known in list(self._known.items()):
            if known.used + FORGET_SECONDS <= now and known.lookup is None:
                del self._known[name]


def _literal(host: str, port: int) -> AddrInfoType | None:
    """The address if the host is one already, else None. Raises ValueError for one with a zone (`fe80::1%eth0`)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.version == 4:
        return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)
    if "%" in host:
        raise ValueError("uvloop connects to no zone")
    return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0)


def trusted() -> ssl.SSLContext:
    """TLS settings with the system's authorities, or those of SSL_CERT_FILE. Reading them takes about 10 ms.

    OpenSSL takes a file that it cannot read for one without authorities, so this is logged.
    """
    if (named := os.environ.get("SSL_CERT_FILE")) and not os.access(named, os.R_OK):
        log.warning("SSL_CERT_FILE cannot be read: its authorities are not trusted", extra={"fields": {"file": named}})
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
