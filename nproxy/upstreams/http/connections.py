"""All connections of one gateway process to upstreams, including those that wait for their next call."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from functools import partial
from math import inf

from yarl import URL

from nproxy.telemetry.seldom import Seldom
from nproxy.upstreams.http.connecting import Connector, Destination
from nproxy.upstreams.http.connection import Connection
from nproxy.upstreams.http.errors import ConnectError
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.via import Pseudonym
from nproxy.upstreams.watchdog import Watchdogs

SPARE_FILES = 32
"""Files for other purposes than clients and calls: listening sockets, the log, resolvers, settings read again."""

KEEPALIVE_SECONDS = 4.0
"""Less than the 5 s after which uvicorn closes an idle connection, so that fewer requests meet a closing socket."""

log = logging.getLogger("nproxy.upstreams")


class Connections:
    """Made inside the event loop, closed once. Limits the number of open files; slots are counted elsewhere.

    Calls may hold half of the files that the process may open, minus a reserve. The other half is for clients:
    otherwise new connections, including those of health checks of the gateway, would not be accepted any more.

    pseudonym: this gateway's name in `Via`. via: its entry there.
    """

    def __init__(self, pseudonym: Pseudonym) -> None:
        self.loop = asyncio.get_running_loop()
        self._most = most_calls(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._seldom = Seldom(log)
        self._watchdogs = Watchdogs(self.loop)
        self.via = pseudonym.entry
        self.open: set[Connection] = set()
        self._doubled: set[Connection] = set()  # those of them that hold a second file
        self._idle: dict[object, list[Connection]] = {}
        self._connector = Connector()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, replica: Replica) -> Connection | None:
        """Take the idle connection to a replica that was used last; None if there is none.

        So surplus connections grow old, and are closed.
        """
        idle = self._idle.get(_key(replica), [])
        oldest = self.loop.time() - KEEPALIVE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.usable and connection.since > oldest and connection.quiet:
                return connection
            self._drop(connection)
        return None

    async def connect(self, replica: Replica, url: URL, seconds: float | None, deadline: float = inf) -> Connection:
        """Open a new connection to a replica, within so many seconds and before a deadline in the loop's time.

        Raises HTTPError if none is established.
        """
        self._make_room()
        done = partial(self._put, _key(replica))
        connection = Connection(self._watchdogs, done, self.open.discard, self._doubled, self._more_files)
        self.open.add(connection)
        try:
            await self._connector.connect(connection, _destination(replica, url), seconds, deadline)
        except BaseException:
            self.open.discard(connection)
            raise
        return connection

    def _more_files(self) -> bool:
        """Whether one more file may be opened."""
        return len(self.open) + len(self._doubled) < self._most

    def _make_room(self) -> None:
        """Make sure that one more file may be opened; close an idle connection or a second file if necessary.

        Raises ConnectError like the system does when no file is left.
        """
        if self._more_files():
            return
        for idle in self._idle.values():
            while idle:
                connection = idle.pop(0)
                connection.abort()
                if connection in self.open:  # else it was closed before, and its file is free already
                    self.open.discard(connection)
                    return
        for doubled in self._doubled:
            doubled.close_second()  # only an early answer may need it
            return
        self._seldom.tell(logging.WARNING, "too many calls at once; new ones fail", {"most": self._most})
        raise ConnectError("refused", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    def forget(self, replica: Replica) -> None:
        """Close the idle connections to a replica: one had been closed by the server, so the others may be too."""
        for connection in self._idle.pop(_key(replica), ()):
            self._drop(connection)

    async def close(self) -> None:
        """Close all connections, including those that are given back later."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in [*self.open]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes the sockets

    def _drop(self, connection: Connection) -> None:
        """Close an idle connection. It does not count any more, though its file is only free after the loop's turn."""
        connection.abort()
        self.open.discard(connection)

    def _put(self, key: object, connection: Connection) -> None:
        """Keep a connection for the next call."""
        if self._closed:
            connection.abort()
            return
        connection.since = self.loop.time()
        self._idle.setdefault(key, []).append(connection)
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(KEEPALIVE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and drop those that were closed meanwhile."""
        oldest = self.loop.time() - KEEPALIVE_SECONDS
        kept: dict[object, list[Connection]] = {}
        for key, idle in self._idle.items():
            for connection in idle:
                if connection.usable and connection.since > oldest:
                    kept.setdefault(key, []).append(connection)
                else:
                    connection.abort()
        self._idle = kept
        self._sweeping = self.loop.call_later(KEEPALIVE_SECONDS / 4, self._sweep) if kept else None


def most_calls(files: int) -> int:
    """How many connections to upstreams a process may have that may open so many files."""
    return max(1, files // 2 - min(SPARE_FILES, files // 8))


def _key(replica: Replica) -> object:
    """The key of a replica's idle connections. It changes with the name that the certificate must be for."""
    return replica.socket, replica.base, replica.authority


def _destination(replica: Replica, url: URL) -> Destination:
    """Where connections to a replica go. Raises ValueError for a URL without a host."""
    host, port = url.host, url.port
    if host is None or port is None:
        raise ValueError("a URL without a host")
    # A dot at the end is for resolvers only: certificates and SNI have none (RFC 6066, section 3).
    server_name = (replica.server_name or host).removesuffix(".") if url.scheme == "https" else None
    return Destination(replica.socket, host, port, server_name)
