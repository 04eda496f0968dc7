"""An address where connections neither come about nor are refused, as where a machine is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def says_nothing(host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """A listener whose backlog is full, which answers no SYN; yields its base URL."""
    with ExitStack() as stack:
        listener, filler, extra = (stack.enter_context(socket.socket()) for _ in range(3))
        listener.bind((host, port))
        listener.listen(0)
        filler.connect(listener.getsockname())
        extra.setblocking(False)
        extra.connect_ex(listener.getsockname())
        yield f"http://{host}:{listener.getsockname()[1]}/v1"
