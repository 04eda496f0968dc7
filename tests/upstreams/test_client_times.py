"""One upstream call over real sockets: each of its time limits, and what does not count as the upstream's time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from nproxy.choices.events import Event, FailureKind, LegEnded, LegFailed
from nproxy.upstreams import event_stream
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import Behaviour, FakeUpstream, raw_server
from tests.upstreams.conftest import Caller, datas, replica_at


@pytest.mark.parametrize(
    ("times", "kind", "told"),
    [
        (
            {"connect": 0.1, "first_event": None, "total": None},
            FailureKind.CONNECT_TIMEOUT,
            "The upstream 'u' could not be reached in time.",
        ),
        ({"connect": 5.0, "first_event": 0.1}, FailureKind.TIMEOUT, "The upstream's answer did not begin in time."),
        (
            {"connect": None, "first_event": None, "total": 0.1},
            FailureKind.TIMEOUT,
            "The upstream's answer was not complete in time.",
        ),
    ],
)
async def test_N1_connect(caller: Caller, times: dict[str, Any], kind: FailureKind, told: str) -> None:
    with says_nothing() as url:
        failure = await caller.failure(url, **times)
    assert (failure.kind, failure.message) == (kind, told)
    assert failure.seconds == (0.1 if kind is FailureKind.CONNECT_TIMEOUT else 0.0)


async def test_N1_first_event_before_the_head(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(hold=asyncio.Event())) as upstream:
        failure = await caller.failure(upstream.url, first_event=0.1)
    assert (failure.kind, failure.message) == (FailureKind.TIMEOUT, "The upstream's answer did not begin in time.")


async def test_N1_comments_do_not_satisfy_first_event(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(pings=1000, ping_pause=0.01)) as upstream:
        failure = await caller.failure(upstream.url, first_event=0.15)
        await upstream.until(lambda: not upstream.open_calls)
    assert (failure.kind, failure.message) == (FailureKind.TIMEOUT, "The upstream's answer did not begin in time.")


async def test_N1_idle(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(hold_after=2)) as upstream:
        events = await caller.events(upstream.url, idle=0.1)
    assert len(datas(events)) == 2
    last = events[-1]
    assert isinstance(last, LegFailed)
    assert last.failure.message == "The upstream sent nothing more of its answer in time."


async def test_N1_idle_is_per_event(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(pause=0.06)) as upstream:
        assert (await caller.events(upstream.url, idle=0.2, first_event=0.2))[-1] == LegEnded(3)


async def test_N1_total(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(pause=0.05)) as upstream:
        failure = await caller.failure(upstream.url, total=0.15)
    assert failure.message == "The upstream's answer was not complete in time."


async def test_N1_response(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(pause=5)) as upstream:
        failure = await caller.failure(upstream.url, stream=False, response=0.1, first_event=0.01)
    assert failure.message == "The upstream did not send its answer in time."


async def test_N1_response_once_its_head_has_come(caller: Caller) -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"choices"')
        await reader.read()

    async with raw_server(stalls) as url, asyncio.timeout(10):
        failure = await caller.failure(url, stream=False, response=0.1, first_event=0.01)
    assert failure.message == "The upstream did not send its answer in time."


@pytest.mark.parametrize(("total", "whole"), [(0.1, False), (60.0, True)])
async def test_N1_total_bounds_the_body_of_an_error_too(caller: Caller, total: float, whole: bool) -> None:
    async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\n" + (b"oops" if whole else b"oo"))
        await reader.read()

    async with raw_server(stalls) as url, asyncio.timeout(5):
        failure = await caller.failure(url, total=total)
    assert (failure.status, failure.body, failure.unread) == (400, b"oops" if whole else b"", not whole)


@pytest.mark.parametrize("behind", [b"", b"data: 2\n\n"])
@pytest.mark.parametrize("mark", [b"[DONE]", b" [DONE] "])
async def test_a_stream_left_open_after_done_has_ended(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, mark: bytes, behind: bytes
) -> None:
    monkeypatch.setattr(event_stream, "AFTER_DONE_SECONDS", 0.05)

    async def lingers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        writer.write(head + b"data: 1\n\ndata:" + mark + b"\n\n" + behind)
        await reader.read()

    async with raw_server(lingers) as url:
        assert (await caller.events(url))[-1] == LegEnded(3)


async def test_what_comes_after_done_prolongs_nothing(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "AFTER_DONE_SECONDS", 0.1)

    async def goes_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"data: [DONE]\n\ndata: {}\n\n")
                await writer.drain()
                await asyncio.sleep(0.02)

    async with raw_server(goes_on) as url, asyncio.timeout(5):
        assert (await caller.events(url))[-1] == LegEnded(3)


async def test_a_slow_taker_is_not_the_upstreams_silence(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(pause=0.02)) as upstream:
        taken: list[list[Event]] = []

        def slowly(batch: list[Event]) -> asyncio.Future[None]:
            taken.append(batch)
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.6, room.set_result, None)
            return room

        client = caller.client(idle=0.3, first_event=0.4)
        await client.call(replica_at(upstream.url), caller.call(stream=True), slowly)
    assert len(taken) > 1 and taken[-1][-1] == LegEnded(3)
    assert datas([event for batch in taken for event in batch])[-1] == b"[DONE]"


@pytest.mark.parametrize(("pause", "ours"), [(0.0, True), (0.3, False)])
async def test_no_upstream_is_blamed_where_a_slow_taker_used_up_the_time(
    caller: Caller, pause: float, ours: bool
) -> None:
    """Unless most of it was the upstream's. pause: before each of its chunks."""
    async with FakeUpstream(Behaviour(pause=pause, hold_after=2)) as upstream:
        taken: list[list[Event]] = []

        def slowly(batch: list[Event]) -> asyncio.Future[None]:
            taken.append(batch)
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.02 if pause else 0.6, room.set_result, None)
            return room

        await caller.client(total=0.5).call(replica_at(upstream.url), caller.call(stream=True), slowly)
    last = taken[-1][-1]
    assert isinstance(last, LegFailed)
    assert last.failure.message == "The upstream's answer was not complete in time."
    assert last.failure.ours is ours
