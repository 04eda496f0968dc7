"""Ports for test servers that no other test process uses, not even before they are bound or after the server ended.

A port that the system assigns (`bind` to 0) is free for all again as soon as its socket is closed. While a server
starts, and after it was killed, another process may get it, and clients of one test then reach servers of another. So
ports come from below the range from which Linux assigns them (net.ipv4.ip_local_port_range), and each process has a
block of its own.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path

_BLOCK = 1024
_BLOCKS = range(12 * _BLOCK, 32 * _BLOCK, _BLOCK)
_next = itertools.count()


def free_port() -> int:
    """Return a loopback port on which nothing listens. This process returns it again only after a thousand others."""
    first, _ = _block(os.getpid())
    for _ in range(_BLOCK):
        port = first + next(_next) % _BLOCK
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    raise RuntimeError(f"all ports from {first} to {first + _BLOCK - 1} are in use")


@cache
def _block(process: int) -> tuple[int, int]:
    """The first port of this process's block, and its lock file's descriptor: which reserves it while open."""
    folder = Path(tempfile.gettempdir()) / f"nproxy-tests-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in _BLOCKS:
        file = os.open(folder / str(first), os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        return first, file
    raise RuntimeError(f"all blocks of ports are taken: {folder} has a lock for each")
