"""A server on its port, from its first connection to the end of its last one, and its base URL."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from nproxy.config import Admin, Listen
from nproxy.gateway.server import HttpServer

BACKLOG = 1024
"""Connections that may wait to be accepted."""


@asynccontextmanager
async def served(
    http: HttpServer,
    at: Listen | Admin,
    sock: socket.socket | None = None,
    *,
    end_seconds: float,
    accept: Callable[[], asyncio.BaseProtocol] | None = None,
) -> AsyncIterator[asyncio.Server]:
    """Accept connections while the block runs. After it, requests in flight have `end_seconds`, and then are cancelled.

    sock: a bound socket to listen on instead of the address in `at`. accept: makes the protocol of accepted sockets if
    it is not `http`, as with TLS. Raises OSError if the address cannot be bound.
    """
    where: dict[str, Any] = {"host": at.host, "port": at.port} if sock is None else {"sock": sock}
    protocol = http if accept is None else accept
    server = await asyncio.get_running_loop().create_server(protocol, **where, backlog=BACKLOG)
    try:
        yield server
    finally:
        server.close()
        http.pre_shutdown()
        await http.shutdown(end_seconds)
        await server.wait_closed()


def base_url(sock: socket.socket, *, tls: bool = False) -> str:
    """Return the base URL of the server on this socket: `http://127.0.0.1:8000`."""
    host, port = sock.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
