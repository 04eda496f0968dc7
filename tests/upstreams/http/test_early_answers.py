"""Answers of servers that do not read a long body to its end, and close: writing fails before the answer is read."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest

from nproxy.concurrency.tasks import beside
from nproxy.upstreams.http.errors import LostError
from nproxy.upstreams.http.sending import Upload
from tests.upstreams.http.asking import Http, rest
from tests.waiting import until

LONG = 6 << 20
TIMES = 20


SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    taken, _ = server.accept()
    with taken:
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += taken.recv(4096)
        taken.sendall(sys.argv[1].encode())
"""


@contextmanager
def refusing(answer: bytes) -> Iterator[str]:
    """A server that answers each request when its head has come, and closes; in this process it would be slower."""
    with subprocess.Popen([sys.executable, "-c", SERVER, answer.decode()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(LONG >> 16):
        yield b"x" * (1 << 16)
        await asyncio.sleep(0)


async def upload(http: Http, url: str) -> bytes:
    """Send a body as it comes."""
    body = Upload(pieces(), None)
    sending = asyncio.create_task(body.run())
    try:
        reply = await http.send(url, body)
        await reply.begun()
        assert reply.head.status == 413
        return await rest(reply)
    finally:
        sending.cancel()


@pytest.mark.parametrize("answer", [b"Content-Length: 7\r\nConnection: close\r\n\r\ntoo big", b"\r\ntoo big"])
async def test_they_are_read(http: Http, answer: bytes) -> None:
    with refusing(b"HTTP/1.1 413 Too Large\r\n" + answer) as url:
        descriptors = psutil.Process().num_fds()
        for _ in range(TIMES):
            body: Sequence[bytes] = (b"x" * LONG,)
            reply = await http.send(url, body)
            await reply.begun()
            assert reply.head.status == 413
            if b"Length" in answer:
                assert await rest(reply) == b"too big"
            reply.close()
            if b"Length" in answer:
                assert await upload(http, url) == b"too big"
        await asyncio.sleep(0.05)
        assert psutil.Process().num_fds() <= descriptors + 1, "none is left open"


async def test_without_an_answer_the_call_has_failed(http: Http) -> None:
    with refusing(b"") as url:
        for _ in range(TIMES):
            reply = await http.send(url, (b"x" * LONG,))
            with pytest.raises(LostError):
                await reply.begun()
            reply.close()


async def test_a_server_that_reads_no_further_does_not_keep_the_connection(http: Http) -> None:
    """What is left of the body waits in the transport, though too little of it to hold up the upload."""
    answered = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taken: list[socket.socket] = []

        async def until_stuck() -> AsyncIterator[bytes]:
            (connection,) = http.connections.open
            while connection.transport is not None and not connection.transport.get_write_buffer_size():
                yield b"x" * (1 << 14)
                await asyncio.sleep(0.001)
            taken.append(server.accept()[0])
            taken[0].sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big")
            await answered.wait()

        body = Upload(until_stuck(), None)
        async with beside(body.run()):
            reply = await http.send(f"http://127.0.0.1:{server.getsockname()[1]}/v1", body)
            await reply.begun()
            assert await rest(reply) == b"too big"
            answered.set()
        await until(lambda: not http.connections.open)
        taken[0].close()
