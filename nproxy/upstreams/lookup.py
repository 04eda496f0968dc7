"""Looks up host names by the system's resolver, each in a thread of its own.

The event loop has four threads for all of its lookups, and uses two of them at a time. There, names whose resolver does
not answer would keep all other names waiting, and with them the servers behind those.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import partial

from aiohappyeyeballs import AddrInfoType

from nproxy.concurrency.daemon_thread import start_daemon_thread

NO_ADDRESS = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors of resolvers that know: the name has no address."""


def look_up(host: str, port: int | None) -> asyncio.Future[list[AddrInfoType]]:
    """Start to look up the addresses of a name. The lookup goes on if nobody waits for it any more.

    Its result may be an OSError, also if no thread can be started, or a ValueError for what cannot be a name.
    """
    try:
        return asyncio.wrap_future(start_daemon_thread(partial(_addresses, host, port), "nproxy-name"))
    except RuntimeError:
        failed: asyncio.Future[list[AddrInfoType]] = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError(errno.ENOMEM, "no thread can be started"))
        return failed


def _addresses(host: str, port: int | None) -> list[AddrInfoType]:
    return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
