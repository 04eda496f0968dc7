"""Run the gateway: sockets, signals, drain. The entry for the command line and for tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from nproxy.config import Config


async def serve(
    config: Config,
    *,
    engine_socket: Path | None = None,
    sock: socket.socket | None = None,
    ready: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`, then drain for `listen.drain_seconds` and return.

    engine_socket: the Unix socket of the built-in engine, which becomes the first upstream (it may not answer yet).
    sock: a bound socket to listen on instead of `listen.host` and `listen.port`.
    ready: called once with the base URL (`http://127.0.0.1:8000`) as soon as connections are accepted.
    Raises OSError when the address cannot be bound.
    """
    raise NotImplementedError
