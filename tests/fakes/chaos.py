"""A TCP proxy that does to connections what networks and failing servers do.

    async with ChaosProxy(host, port, lambda number: RESET if number == 0 else CLEAN) as proxy:
        ...                                  # connect to proxy.port

Each connection has one `Fault`, chosen by the connection's number, from 0. `drawn(seed, shares)` chooses at random, but
the same for the same seed. A fault begins once `after` bytes of the answer have passed; these have left by then.
`refuse` closes the listener, and `listen` opens it again on the same port; `cut` resets the open connections.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

Kind = Literal["clean", "delay", "reset", "fin", "half-close", "stall", "drip", "garble", "black hole", "limit"]

_SIZE = 65536
_EVENT = b"data: {"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one connection.

    delay: each segment of the answer waits `seconds`. reset: an RST. fin: the connection is closed in both directions.
    half-close: the answer ends, but requests are still taken. stall: nothing more comes, and the answer does not end
    until the requests do. drip: the answer comes byte by byte, `seconds` apart. garble: the next event is not JSON any
    more; its length stays the same. black hole: the connection is accepted, and nothing is passed on. limit: at most
    `rate` bytes a second.
    """

    kind: Kind = "clean"
    after: int = 0
    seconds: float = 0.0
    rate: float = 1e6


CLEAN = Fault()

Choose = Callable[[int], Fault]


def drawn(seed: int, shares: Mapping[Fault, float], within: int) -> Choose:
    """Choose at random: each fault hits its share of the connections, within so many bytes after its `after`."""

    def choose(number: int) -> Fault:
        draw = random.Random(f"{seed} {number}")
        (fault,) = draw.choices([*shares, CLEAN], [*shares.values(), max(0.0, 1.0 - sum(shares.values()))])
        return replace(fault, after=fault.after + draw.randrange(within))

    return choose


class ChaosProxy:
    """See the module. suffered: how many connections each kind of fault has hit. open: number of open connections."""

    def __init__(self, host: str, port: int, choose: Choose = lambda number: CLEAN, *, listen_on: int = 0) -> None:
        self.choose = choose
        self.port = listen_on
        self.connections = 0
        self.suffered: dict[Kind, int] = {}
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        """The base URL, if an OpenAI server is behind the proxy."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open(self) -> int:
        return len(self._open)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        await asyncio.sleep(0)  # connections that were just accepted begin
        while tasks := tuple(self._open):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Accept connections; the first time on a free port, later on the same one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse new connections; open ones go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Reset every open connection."""
        for writer in tuple(self._open.values()):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        number, self.connections = self.connections, self.connections + 1
        writer.transport.set_write_buffer_limits(0)  # so that `drain` returns only when everything has left
        try:
            await self._pass(self.choose(number), reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or the proxy is
        finally:
            writer.close()
            del self._open[task]

    async def _pass(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if fault.kind == "black hole":
            self._strikes(fault)
            await reader.read()
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            async with asyncio.TaskGroup() as ways:
                up = ways.create_task(_copy(reader, server_writer))
                ways.create_task(self._down(fault, server_reader, writer, up))
        except* (OSError, RuntimeError):
            pass  # one side was reset; uvloop raises RuntimeError for closed transports
        finally:
            server_writer.transport.abort()

    async def _down(
        self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: asyncio.Task[None]
    ) -> None:
        """Pass on the answer up to the fault, then apply that. The requests' direction ends with the connection."""
        passed = 0
        while passed < fault.after and (data := await reader.read(min(_SIZE, fault.after - passed))):
            writer.write(data)
            await writer.drain()
            passed += len(data)
        if fault.kind != "clean" and passed == fault.after and await self._strike(fault, reader, writer):
            return  # the requests' direction goes on until the client ends it
        if not writer.transport.is_closing():
            await _copy(reader, writer)
        up.cancel()

    async def _strike(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Apply the fault; return whether the answer is over while the connection is not."""
        if fault.kind in ("reset", "fin", "half-close", "stall") and not await reader.read(1):
            return False  # the answer was over already
        self._strikes(fault)
        match fault.kind:
            case "reset":
                _reset(writer)
            case "fin":
                writer.close()
            case "half-close":
                writer.write_eof()
                return True
            case "stall":
                return True
            case "garble":
                await _garble(reader, writer)
            case "delay" | "drip" | "limit":
                await _slowly(fault, reader, writer)
        return False

    def _strikes(self, fault: Fault) -> None:
        self.suffered[fault.kind] = self.suffered.get(fault.kind, 0) + 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass on the end."""
    while data := await reader.read(_SIZE):
        writer.write(data)
        await writer.drain()
    if not writer.transport.is_closing():  # uvloop raises if it is closing
        writer.write_eof()


async def _slowly(fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on the rest slowly."""
    while data := await reader.read(1 if fault.kind == "drip" else _SIZE):
        await asyncio.sleep(len(data) / fault.rate if fault.kind == "limit" else fault.seconds)
        writer.write(data)
        await writer.drain()


async def _garble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Spoil the next event that begins: a NUL at the beginning of its JSON is never valid."""
    held = b""
    while data := await reader.read(_SIZE):
        held += data
        at = held.find(_EVENT)
        if at >= 0:
            writer.write(held[: at + len(_EVENT) - 1] + b"\0" + held[at + len(_EVENT) :])
            await writer.drain()
            return
        safe = len(held) - len(_EVENT) + 1  # an event may begin at the very end
        if safe > 0:
            writer.write(held[:safe])
            held = held[safe:]
    writer.write(held)


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():
        return
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
