"""A process that holds connections to a gateway: each has sent one request, and then stays silent.

    python -m bench.load.idler PORT COUNT

It prints how many it has opened, then for each line that it reads how many are still open; it ends with its input.
"""

from __future__ import annotations

import resource
import select
import socket
import sys

_ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_PATIENCE = 60.0


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = [_connection(port) for _ in range(count)]
    print(len(held), flush=True)
    for _ in sys.stdin:
        print(_open(held), flush=True)


def _connection(port: int) -> socket.socket:
    """Return an open connection whose request was answered."""
    sock = socket.create_connection(("127.0.0.1", port), _PATIENCE)
    sock.sendall(_ASK)
    answer = b""
    while b'{"status"' not in answer:
        part = sock.recv(4096)
        if not part:
            raise ConnectionError("closed instead of answered")
        answer += part
    return sock


def _open(held: list[socket.socket]) -> int:
    """Return how many are open: nothing can be read from them, neither bytes nor an end."""
    look = select.poll()
    for sock in held:
        look.register(sock, select.POLLIN)
    return len(held) - len(look.poll(0))


if __name__ == "__main__":
    main()
