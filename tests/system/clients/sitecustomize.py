"""Restricts a process to loopback: Python imports this before any program with this folder in PYTHONPATH."""

from __future__ import annotations

import os
import sys


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "127.0.0.1"  # a Unix socket's address is its path
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", "localhost", "::1", None):
        print(f"{event}: {host!r} is not on loopback", file=sys.stderr, flush=True)
        os._exit(9)  # a library could swallow an exception and continue without the connection


sys.addaudithook(_refuse)
