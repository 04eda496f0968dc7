"""Python imports this before a program that has this folder in PYTHONPATH: the process reaches loopback only."""

from __future__ import annotations

import os
import sys


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "127.0.0.1"  # a unix socket's address is its path
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", "localhost", "::1", None):
        print(f"{event}: {host!r} is not on loopback", file=sys.stderr, flush=True)
        os._exit(9)  # a library could swallow an exception and go on without what it wanted


sys.addaudithook(_refuse)
