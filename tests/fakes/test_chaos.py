"""The chaos proxy: each fault as a plain TCP client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fakes.chaos import CLEAN, ChaosProxy, Choose, Fault, drawn
from tests.fakes.upstream import raw_server

ANSWER = b"head\r\n" + b'data: {"a": 1}\n\n' * 20
SECONDS = 10.0
"""How long a test waits for what must come. No result depends on how soon it comes."""


@asynccontextmanager
async def answering(choose: Choose) -> AsyncIterator[ChaosProxy]:
    """A proxy in front of a server that answers each line with ANSWER, and ends when the requests do."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(ANSWER)
            await writer.drain()

    async with raw_server(handle) as url, ChaosProxy("127.0.0.1", port_of(url), choose) as proxy:
        yield proxy


def port_of(url: str) -> int:
    return int(url.removesuffix("/v1").rsplit(":", 1)[1])


async def ask(proxy: ChaosProxy, *, ends: bool = True) -> tuple[bytes, str]:
    """Send one line; return what came, and if then an end, a reset or nothing did. ends: end the requests after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    came = bytearray()
    try:
        writer.write(b"ask\n")
        if ends:
            writer.write_eof()
        async with asyncio.timeout(SECONDS if ends else 0.3):
            while data := await reader.read(65536):
                came += data
        return bytes(came), "end"
    except ConnectionResetError:
        return bytes(came), "reset"
    except TimeoutError:
        return bytes(came), "nothing"
    finally:
        writer.close()


def always(fault: Fault) -> Choose:
    return lambda number: fault


async def test_clean() -> None:
    async with answering(always(CLEAN)) as proxy:
        assert await ask(proxy) == (ANSWER, "end")
        assert proxy.suffered == {}


@pytest.mark.parametrize("kind", ["delay", "drip", "limit"])
async def test_slow_ones_lose_nothing(kind: str) -> None:
    async with answering(always(Fault(kind, after=3, rate=1e5))) as proxy:  # type: ignore[arg-type]
        assert await ask(proxy) == (ANSWER, "end")
        assert proxy.suffered == {kind: 1}


async def test_reset() -> None:
    async with answering(always(Fault("reset", after=50))) as proxy:
        came, how = await ask(proxy)
        assert how == "reset"
        assert ANSWER[:50].startswith(came)  # a reset may overtake what was not read yet


@pytest.mark.parametrize("kind", ["fin", "half-close"])
async def test_an_end_in_mid_stream(kind: str) -> None:
    async with answering(always(Fault(kind, after=50))) as proxy:  # type: ignore[arg-type]
        assert await ask(proxy, ends=False) == (ANSWER[:50], "end")


async def test_a_half_closed_connection_still_takes_requests() -> None:
    heard = asyncio.Queue[bytes]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            heard.put_nowait(line)
            writer.write(ANSWER)

    async with raw_server(handle) as url, ChaosProxy("127.0.0.1", port_of(url), always(Fault("half-close"))) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        async with asyncio.timeout(SECONDS):
            writer.write(b"one\n")
            assert await reader.read() == b""
            writer.write(b"two\n")
            assert [await heard.get(), await heard.get()] == [b"one\n", b"two\n"]
        writer.close()


async def test_stall() -> None:
    async with answering(always(Fault("stall", after=50))) as proxy:
        assert await ask(proxy, ends=False) == (ANSWER[:50], "nothing")


async def test_black_hole() -> None:
    async with answering(always(Fault("black hole"))) as proxy:
        assert await ask(proxy, ends=False) == (b"", "nothing")


@pytest.mark.parametrize("after", [0, 8, 13, 100])
async def test_garble_spoils_one_event_and_no_length(after: int) -> None:
    async with answering(always(Fault("garble", after=after))) as proxy:
        came, how = await ask(proxy)
        assert (len(came), how) == (len(ANSWER), "end")
        assert came.count(b"data: \0") == 1
        assert came.find(b"\0") >= after
        assert came.replace(b"\0", b"{") == ANSWER


async def test_a_fault_behind_the_end_does_not_strike() -> None:
    for kind in ("reset", "fin", "stall"):
        async with answering(always(Fault(kind, after=len(ANSWER)))) as proxy:
            assert await ask(proxy) == (ANSWER, "end")
            assert proxy.suffered == {}


async def test_refuse_and_listen_again() -> None:
    async with answering(always(CLEAN)) as proxy:
        port = proxy.port
        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await ask(proxy)
        await proxy.listen()
        assert proxy.port == port
        assert await ask(proxy) == (ANSWER, "end")


async def test_cut_resets_what_is_open() -> None:
    async with answering(always(Fault("stall"))) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        async with asyncio.timeout(SECONDS):
            writer.write(b"ask\n")
            while not proxy.suffered:
                await asyncio.sleep(0.001)
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            while proxy.open:
                await asyncio.sleep(0.001)
        writer.close()


def test_drawn_faults_are_the_same_for_the_same_seed_and_befall_their_shares() -> None:
    reset, stall = Fault("reset"), Fault("stall", after=100)
    choose = drawn(1, {reset: 0.2, stall: 0.1}, within=50)
    faults = [choose(number) for number in range(2000)]
    assert faults == [drawn(1, {reset: 0.2, stall: 0.1}, within=50)(number) for number in range(2000)]
    assert faults != [drawn(2, {reset: 0.2, stall: 0.1}, within=50)(number) for number in range(2000)]
    kinds = [fault.kind for fault in faults]
    assert 300 < kinds.count("reset") < 500
    assert 120 < kinds.count("stall") < 280
    assert {fault.after for fault in faults if fault.kind == "stall"} <= set(range(100, 150))
