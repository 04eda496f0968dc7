"""One upstream call over real sockets: what comes back as events, and how every failure is named."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nproxy.choices.events import Event, FailureKind, LegBody, LegChunks, LegEnded, LegFailed
from nproxy.openai.sse import BETWEEN
from nproxy.upstreams import client as client_module
from nproxy.upstreams.http import reply
from tests.fakes.upstream import Behaviour, FakeUpstream, raw_server, words
from tests.upstreams.conftest import Caller, datas, replica_at, whole
from tests.waiting import until


async def test_stream(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        events = await caller.events(upstream.url)
    assert events[-1] == LegEnded(3)
    assert datas(events)[-1] == b"[DONE]"
    text = "".join(json.loads(data)["choices"][0]["delta"].get("content", "") for data in datas(events)[:-1])
    assert text == "".join(words(0))


async def test_json_body(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        events = await caller.events(upstream.url, stream=False)
    assert [type(event) for event in events] == [LegBody, LegEnded]
    assert whole(events)["choices"][0]["message"]["content"] == "".join(words(0))


async def test_unix_socket(caller: Caller, socket_path: Path) -> None:
    async with FakeUpstream(unix=str(socket_path)) as upstream:
        events = await caller.events(upstream.url)
        assert events[-1] == LegEnded(3)
        assert upstream.calls[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
async def test_P6_any_split_gives_the_same_events(caller: Caller, newline: bytes) -> None:
    async with FakeUpstream() as upstream:
        expected = datas(await caller.events(upstream.url))
        upstream.behaviour = Behaviour(segment=1, newline=newline, pings=2)
        got = datas(await caller.events(upstream.url))
    strip = [json.loads(data)["choices"] for data in expected[:-1]]
    assert [json.loads(data)["choices"] for data in got[:-1]] == strip
    assert got[-1] == b"[DONE]"


async def test_P11_events_of_one_segment_are_one_batch(caller: Caller) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"".join(b"data: %d\n\n" % number for number in range(5))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()

    async with raw_server(answer) as url:
        (batch,) = await caller.batches(url, caller.call(stream=True))
    together = BETWEEN.join(b"%d" % number for number in range(5))
    assert batch == [LegChunks(3, together, 5), LegEnded(3)]


async def test_the_request_on_the_wire(caller: Caller) -> None:
    """Nothing of the HTTP library's own: no user agent, no accept, no compression asked for."""
    async with FakeUpstream() as upstream:
        await caller.batches(upstream.url, caller.call(stream=False, headers={"X-Mine": "1"}))
        seen = upstream.calls[0]
    assert {name.lower() for name in seen.headers} == {"host", "content-type", "content-length", "via", "x-mine"}


async def test_a_large_body_arrives_whole(caller: Caller) -> None:
    text = "é" * 300_000
    async with FakeUpstream() as upstream:
        await caller.batches(upstream.url, caller.call(stream=False, pad=text))
        assert upstream.calls[0].body["pad"] == text


async def test_connections_are_reused(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        for stream in (True, False, True):
            await caller.events(upstream.url, stream=stream)
        assert upstream.connections == 1


async def test_cookies_are_not_kept(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(headers={"Set-Cookie": "tenant=a; Path=/"})) as upstream:
        await caller.events(upstream.url)
        await caller.events(upstream.url)
        assert all("Cookie" not in seen.headers for seen in upstream.calls)


async def test_redirects_are_not_followed(caller: Caller) -> None:
    async with FakeUpstream() as elsewhere, FakeUpstream() as upstream:
        target = {"Location": f"{elsewhere.url}/chat/completions"}
        upstream.behaviour = Behaviour(status=307, headers=target, body=b"")
        failure = await caller.failure(upstream.url)
        assert failure.kind is FailureKind.MALFORMED
        assert elsewhere.requests == []


async def test_compressed_answers_are_refused(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8b")) as upstream:
        assert (await caller.failure(upstream.url)).kind is FailureKind.MALFORMED


async def test_more_than_a_hundred_calls_at_once(caller: Caller) -> None:
    held = asyncio.Event()
    async with FakeUpstream(Behaviour(hold=held)) as upstream, asyncio.TaskGroup() as tasks:
        for _ in range(120):
            tasks.create_task(caller.events(upstream.url))
        await upstream.until(lambda: len(upstream.open_calls) == 120)
        held.set()


async def test_nodelay_towards_the_upstream(caller: Caller) -> None:
    held = asyncio.Event()
    async with FakeUpstream(Behaviour(hold=held)) as upstream:
        task = asyncio.create_task(caller.events(upstream.url))
        await upstream.until(lambda: len(upstream.open_calls) == 1)
        (connection,) = caller.connections.open
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        held.set()
        await task


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"\xef\xbb\xbfretry", b": 5\n"),
        (b"\xef", b"\xbb\xbfretry: 5\n"),
        (b"\n\xef\xbb\xbfeven", b"t: message\n"),
        (b"retr", b"y: 5\n"),
    ],
)
async def test_K17_how_events_under_another_content_type_begin_may_come_in_pieces(
    caller: Caller, first: bytes, rest: bytes
) -> None:
    taken = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + first)
        await asyncio.sleep(0.05)
        writer.write(rest + b"data: {}\n\n")
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass

    async with raw_server(answer) as url, asyncio.timeout(5):
        call = caller.client().call(replica_at(url), caller.call(stream=True), lambda _: taken.set())
        task = asyncio.create_task(call)
        await taken.wait()  # though the answer goes on
        task.cancel()


# How failures are named


async def test_status_with_retry_after(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(status=429, headers={"Retry-After": "7"}, body=b'{"e": 1}')) as upstream:
        failure = await caller.failure(upstream.url)
    assert (failure.kind, failure.status, failure.retry_after) == (FailureKind.STATUS, 429, 7.0)
    assert (failure.body, failure.content_type) == (b'{"e": 1}', "application/json")
    assert not failure.own_key


@pytest.mark.parametrize(("status", "seconds"), [(429, 1.0), (503, 1.0), (529, 1.0), (400, None)])
async def test_K2_a_wait_in_the_words_of_an_error(caller: Caller, status: int, seconds: float | None) -> None:
    body = b'{"error": {"message": "reached max concurrency: 1, please try again after 1 seconds"}}'
    async with FakeUpstream(Behaviour(status=status, body=body)) as upstream:
        assert (await caller.failure(upstream.url)).retry_after == seconds


async def test_K15_own_key_is_noted(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(status=401)) as upstream:
        ((failed,),) = await caller.batches(upstream.url, caller.call(stream=True, own_key=True))
    assert isinstance(failed, LegFailed)
    assert failed.failure.own_key


async def test_K11_refused(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        url = upstream.url
    replica = replica_at(url)
    batches: list[list[Event]] = []
    await caller.client().call(replica, caller.call(stream=True), batches.append)
    ((failed,),) = batches
    assert isinstance(failed, LegFailed)
    assert failed.failure.kind is FailureKind.CONNECT
    assert failed.failure.message == "The upstream 'u' could not be reached."
    assert replica.up is False


async def test_K11_no_such_unix_socket(caller: Caller, socket_path: Path) -> None:
    assert (await caller.failure(f"unix:{socket_path}")).kind is FailureKind.CONNECT


async def test_K11_unresolvable(caller: Caller) -> None:
    assert (await caller.failure("http://no-such-host.invalid/v1")).kind is FailureKind.CONNECT


async def test_K11_untrusted_tls(caller: Caller, tmp_path: Path) -> None:
    """A plain server where TLS is expected: the handshake fails."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")

    async with raw_server(plain) as url:
        failure = await caller.failure(url.replace("http:", "https:"))
    assert failure.kind is FailureKind.CONNECT
    assert ssl.SSLError.__name__ not in failure.message


async def test_reset_and_close_before_the_head(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        for how in ("reset", "close"):
            upstream.behaviour = Behaviour(before_head=how)
            assert (await caller.failure(upstream.url)).kind is FailureKind.RESET


async def test_a_stale_socket_is_told_from_a_broken_one(caller: Caller) -> None:
    async with FakeUpstream() as upstream:
        upstream.script(Behaviour(), Behaviour(before_head="close"))
        assert (await caller.events(upstream.url))[-1] == LegEnded(3)
        assert (await caller.failure(upstream.url)).kind is FailureKind.STALE
        assert upstream.connections == 1


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_socket_that_said_something_is_not_stale(caller: Caller, said: bytes) -> None:
    """Who begins to answer has taken the request, which must not be sent again as if it had not been."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"} ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"} ")
        writer.write(said)

    async with raw_server(handle) as url:
        assert (await caller.events(url))[-1] == LegEnded(3)
        assert (await caller.failure(url)).kind is FailureKind.RESET


async def test_a_socket_that_ends_later_is_not_stale(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server has had the time to take the request."""
    monkeypatch.setattr(reply, "STALE_SECONDS", 0.1)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"} ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"} ")
        await asyncio.sleep(0.2)

    async with raw_server(handle) as url:
        assert (await caller.events(url))[-1] == LegEnded(3)
        assert (await caller.failure(url)).kind is FailureKind.RESET


async def test_where_one_was_stale_the_others_are_not_tried(caller: Caller) -> None:
    both = asyncio.Barrier(2)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"} ")
        if both.n_waiting or not served:
            served.append(1)
            await both.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"} ")

    served: list[int] = []
    async with raw_server(handle) as url:
        ends = await asyncio.gather(caller.events(url), caller.events(url))
        assert [end[-1] for end in ends] == [LegEnded(3)] * 2
        assert (await caller.failure(url)).kind is FailureKind.STALE
        assert (await caller.events(url))[-1] == LegEnded(3)


@pytest.mark.parametrize("end", ["reset", "cut"])
async def test_cut_in_mid_stream(caller: Caller, end: str) -> None:
    async with FakeUpstream(Behaviour(end_after=2, end=end)) as upstream:  # type: ignore[arg-type]
        events = await caller.events(upstream.url)
    assert len(datas(events)) == 2
    assert isinstance(events[-1], LegFailed)
    assert events[-1].failure.kind is FailureKind.CUT


async def test_clean_close_is_an_end(caller: Caller) -> None:
    """Whether an end came too early is not for the transport to say."""
    async with FakeUpstream(Behaviour(end_after=2, end="close")) as upstream:
        assert (await caller.events(upstream.url))[-1] == LegEnded(3)


async def test_not_http(caller: Caller) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9\r\n\r\n")
        await writer.drain()

    async with raw_server(nonsense) as url:
        assert (await caller.failure(url)).kind is FailureKind.MALFORMED


async def test_header_bomb(caller: Caller) -> None:
    async def bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\n")

    async with raw_server(bomb) as url:
        assert (await caller.failure(url)).kind is FailureKind.MALFORMED


async def test_json_body_over_the_limit(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BODY", 1000)
    async with FakeUpstream(Behaviour(body=b" " * 2000)) as upstream:
        failure = await caller.failure(upstream.url)
        assert failure.kind is FailureKind.OVERSIZE
        assert "larger than 1000 bytes" in failure.message


@pytest.mark.parametrize(("choices", "last"), [(2, LegEnded), (128, LegFailed)])
async def test_more_choices_may_be_larger_within_bounds(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, choices: int, last: type
) -> None:
    monkeypatch.setattr(client_module, "MAX_BODY", 1000)
    size = 1000 * min(choices, client_module.MOST_CHOICES + 1)
    async with FakeUpstream(Behaviour(body=b" " * size)) as upstream:
        call = replace(caller.call(stream=False), choices=choices)
        assert type((await caller.batches(upstream.url, call))[-1][-1]) is last


async def test_event_over_the_limit(caller: Caller) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ")
        while True:
            writer.write(b"a" * 65536)
            await writer.drain()

    async with raw_server(endless) as url:
        assert (await caller.failure(url)).kind is FailureKind.OVERSIZE


async def test_an_event_of_600_kib_passes(caller: Caller) -> None:
    long = "x" * 600 * 1024
    async with FakeUpstream(Behaviour(pieces=lambda seed: [long])) as upstream:
        events = await caller.events(upstream.url)
    assert any(long.encode() in data for data in datas(events))


# Cancellation


@pytest.mark.parametrize(
    "came",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["nothing", "stream", "body", "error"],
)
async def test_cancelling_closes_the_socket_at_once(caller: Caller, came: bytes) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(came)
        asked.set()
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        closed.set()

    async with raw_server(answer) as url:
        task = asyncio.create_task(caller.events(url))
        await asked.wait()
        (reply,) = (connection._reply for connection in caller.connections.open)
        await until(lambda: reply is not None and reply.has_begun == bool(came))
        await asyncio.sleep(0.01)  # the call takes what came
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(1):
            await closed.wait()


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
async def test_cancelling_a_call_that_waits_for_its_taker_leaves_the_others_waiting(caller: Caller, kind: str) -> None:
    taken, room = asyncio.Event(), asyncio.get_running_loop().create_future()

    def take(_: list[Event]) -> asyncio.Future[None]:
        taken.set()
        return room  # of a full inbox, which all legs share

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\ndata: {}\n\n" % kind.encode())
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass

    async with raw_server(answer) as url, asyncio.timeout(5):
        task = asyncio.create_task(caller.client().call(replica_at(url), caller.call(stream=True), take))
        await taken.wait()
        await asyncio.sleep(0.01)  # it waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not room.done()


@pytest.mark.parametrize(("came", "kept"), [(b"x" * 20, b"x" * 10), (b"x" * 5, b"")], ids=["long", "slow"])
async def test_no_more_of_an_error_is_awaited_than_its_limits_allow(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, came: bytes, kept: bytes
) -> None:
    monkeypatch.setattr(client_module, "MAX_ERROR_BODY", 10)
    monkeypatch.setattr(client_module, "ERROR_BODY_SECONDS", 0.2)
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99\r\n\r\n" + came)
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        closed.set()

    async with raw_server(answer) as url, asyncio.timeout(5):
        failure = await caller.failure(url)
        assert (failure.status, failure.body) == (503, kept)
        await closed.wait()
