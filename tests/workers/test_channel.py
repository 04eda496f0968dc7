"""Both ends of a channel over a real socket pair: questions and answers, garbage, a peer that is gone or stuck."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from nproxy.workers import channel as channels
from nproxy.workers import frames
from nproxy.workers.channel import Channel, ChannelClosed, connect
from nproxy.workers.frames import frame
from nproxy.workers.messages import Admission, Beat, Message, NotAMessage, Query, Ready, Result, encode
from tests.waiting import until


@dataclass
class Pair:
    """A channel, and the bare socket at its other end."""

    channel: Channel
    peer: socket.socket


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    end, peer = socket.socketpair()
    channel = await connect(end)
    yield Pair(channel, peer)
    channel.close()
    peer.close()


async def rest(channel: Channel) -> list[Message]:
    """What is left to hear, once the channel has closed."""
    async with asyncio.timeout(5):
        await channel.closed()
        return [message async for message in channel.messages()]


async def test_a_question_has_its_answer(pair: Pair) -> None:
    other = await connect(pair.peer)

    async def answer() -> None:
        async for message in other.messages():
            assert isinstance(message, Query)
            other.send(Result(message.number + 1000, "nobody asked this"))
            other.send(Result(message.number, f"{message.what} it is"))

    answering = asyncio.ensure_future(answer())
    first, second = await asyncio.gather(pair.channel.ask("metrics", 5), pair.channel.ask("ready", 5))
    assert (first, second) == ("metrics it is", "ready it is")
    other.send(Ready("1"))
    other.close()
    assert await rest(pair.channel) == [Ready("1")]
    await answering


async def test_a_question_without_an_answer_ends(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        await pair.channel.ask("metrics", 0.01)


async def test_an_answer_to_who_has_just_given_up_is_dropped_and_nothing_is_left_of_the_question(pair: Pair) -> None:
    asked = asyncio.ensure_future(pair.channel.ask("metrics", 30))
    await until(lambda: bool(pair.channel._asked))
    asked.cancel()  # what a timeout does, too
    pair.channel.data_received(frame(encode(Result(0, "late"))))
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: not pair.channel._asked)


async def test_a_message_that_is_too_long_is_not_sent_and_the_channel_stays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(frames, "LONGEST_FRAME", 100)
    other = await connect(pair.peer)
    pair.channel.send(Beat("x" * 100))
    pair.channel.send(Ready("1"))
    pair.channel.close()
    assert await rest(other) == [Ready("1")]
    assert [record.getMessage() for record in caplog.records if record.name == "nproxy.workers"] == [
        "a message is too long and was not sent"
    ]


class Counted:
    """A transport whose writes are counted."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes = list[bytes]()

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_messages_of_admission_in_one_turn_are_one_write_and_nothing_overtakes_them(pair: Pair) -> None:
    other, heard = await connect(pair.peer), list[bytes]()
    other.admission = lambda message: heard.append(message.message)
    pair.channel._transport = counted = Counted(pair.channel._transport)  # type: ignore[assignment]
    pair.channel.send(Admission(b'["leave","w-1"]'))
    pair.channel.send(Admission(b'["leave","w-2"]'))
    assert counted.writes == []
    await asyncio.sleep(0)
    pair.channel.send(Admission(b'["leave","w-3"]'))
    pair.channel.send(Ready("1"))
    pair.channel.send(Admission(b'["leave","w-4"]'))
    pair.channel.close()
    assert await rest(other) == [Ready("1")]
    assert heard == [b'["leave","w-%d"]' % number for number in range(1, 5)]
    assert len(counted.writes) == 3
    assert counted.writes[1] == frame(b'["leave","w-3"]') + frame(encode(Ready("1")))


def unreadable(_: Admission) -> None:
    raise NotAMessage


async def test_what_admission_control_cannot_read_closes_the_channel(pair: Pair) -> None:
    other = await connect(pair.peer)
    other.admission = unreadable
    pair.channel.send(Admission(b"[]"))
    assert await rest(other) == []


async def test_before_somebody_listens_messages_of_admission_control_are_dropped(pair: Pair) -> None:
    """A parent tells all workers that there is room again, also one whose interpreter is still starting."""
    pair.channel.send(Admission(b'["room"]'))
    pair.channel.send(Ready("1"))
    other = await connect(pair.peer)
    pair.channel.close()
    assert await rest(other) == [Ready("1")]


async def test_a_peer_has_one_query_of_a_kind_at_a_time_however_many_ask_and_leave(pair: Pair) -> None:
    other = await connect(pair.peer)
    queries = other.messages()
    asked = [asyncio.ensure_future(pair.channel.ask("metrics", 30))]
    first = await anext(queries)
    for _ in range(100):
        asked.append(asyncio.ensure_future(pair.channel.ask("metrics", 30)))
        await asyncio.sleep(0)
    for one in asked[:50]:
        one.cancel()
    assert isinstance(first, Query)
    other.send(Result(first.number, "first"))
    second = await anext(queries)
    assert isinstance(second, Query)
    other.send(Result(second.number, "second"))
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[50:] == 51 * ["second"], "the first answer may be older than their questions"
    assert other._inbox.empty() and not pair.channel._asked
    other.close()


async def test_a_query_without_an_answer_is_followed_by_another(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        await pair.channel.ask("metrics", 0.01)
    other = await connect(pair.peer)
    queries = other.messages()
    asked = asyncio.ensure_future(pair.channel.ask("metrics", 0.5))
    numbers = [query.number for query in (await anext(queries), await anext(queries)) if isinstance(query, Query)]
    other.send(Result(numbers[-1], "here"))
    assert await asked == "here" and len(numbers) == 2
    other.close()


async def test_a_peer_that_goes_ends_the_questions_to_it(pair: Pair) -> None:
    asked = asyncio.ensure_future(pair.channel.ask("metrics", 30))
    await asyncio.sleep(0)
    pair.peer.close()
    with pytest.raises(ChannelClosed):
        await asked
    await rest(pair.channel)
    with pytest.raises(ChannelClosed):
        await pair.channel.ask("metrics", 30)
    pair.channel.send(Ready("into the void"))


@pytest.mark.parametrize("garbage", [b"\xff" * 8, b"\x00\x00\x00\x02{]", b"GET / HTTP/1.1\r\n\r\n"])
async def test_garbage_closes_the_channel(pair: Pair, garbage: bytes) -> None:
    pair.peer.sendall(garbage)
    assert await rest(pair.channel) == []


async def test_a_peer_that_takes_nothing_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MOST_UNREAD", 1 << 20)
    for _ in range(100):
        pair.channel.send(Result(0, "x" * (1 << 16)))
    await rest(pair.channel)
