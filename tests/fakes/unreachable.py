"""An address where connections are neither established nor refused, as if the machine were gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def says_nothing(host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Open a listener whose backlog is full, so that it answers no SYN; yield its base URL."""
    with ExitStack() as stack:
        listener, filler, extra = (stack.enter_context(socket.socket()) for _ in range(3))
        listener.bind((host, port))
        listener.listen(0)
        filler.connect(listener.getsockname())
        extra.setblocking(False)
        extra.connect_ex(listener.getsockname())
        yield f"http://{host}:{listener.getsockname()[1]}/v1"
