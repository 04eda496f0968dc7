"""The HTTP client underneath: one aiohttp session for URLs, one for each Unix socket.

Set against aiohttp's defaults: no cookie jar (it would replay one tenant's cookie to the next), no limit of 100
connections, no decompression, no proxies from the environment, no headers of aiohttp's own.
"""

from __future__ import annotations

import asyncio
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import (
    BaseConnector,
    ClientRequest,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    UnixConnector,
    hdrs,
)
from aiohttp.connector import Connection

from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.via import Pseudonym

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which uvicorn closes an idle connection: fewer requests meet a socket that is just closing."""

DNS_SECONDS = 10


@dataclass(slots=True)
class Used:
    """The connection that a request goes out on, as far as it has one yet.

    reused: it had served before; only then may a call that got no answer be sent again freely.
    """

    transport: asyncio.Transport | None = None
    reused: bool = False

    def abort(self) -> None:
        """Close the socket at once; a plain close would wait until what was written is taken."""
        if self.transport is not None:
            self.transport.abort()


used_connection: ContextVar[Used] = ContextVar("used_connection")
"""Set by who sends a request; filled in by the connector, which aiohttp calls in the same context."""


class _NotesUse(BaseConnector):
    _served: weakref.WeakSet[object]

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        used = used_connection.get()
        used.transport = connection.transport
        protocol = connection.protocol
        used.reused = protocol in self._served
        if not used.reused:
            self._served.add(protocol)
        return connection


class _Tcp(_NotesUse, TCPConnector):
    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=DNS_SECONDS)
        self._served = weakref.WeakSet()


class _Unix(_NotesUse, UnixConnector):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path), limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        self._served = weakref.WeakSet()


class Sessions:
    """All client sessions of one gateway process; made inside the event loop, closed once.

    pseudonym: what the gateway calls itself to those that it calls.
    """

    def __init__(self, pseudonym: Pseudonym) -> None:
        self.pseudonym = pseudonym
        self._tcp = _session(_Tcp())
        self._unix: dict[Path, ClientSession] = {}

    def of(self, replica: Replica) -> ClientSession:
        """The session that reaches this replica."""
        if replica.socket is None:
            return self._tcp
        session = self._unix.get(replica.socket)
        if session is None:
            session = self._unix[replica.socket] = _session(_Unix(replica.socket))
        return session

    async def close(self) -> None:
        for session in (self._tcp, *self._unix.values()):
            await session.close()


def _session(connector: BaseConnector) -> ClientSession:
    return ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        raise_for_status=False,
        timeout=ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
    )
