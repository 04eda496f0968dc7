"""Replicas whose health checks get no answer, or a bad one, while they are at work: what shows that they live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from nproxy.upstreams.replicas import Replica
from tests.fakes.upstream import MODEL, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, gateway_for
from tests.waiting import until

CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
EVENT = f"data: {json.dumps(CHUNK)}\n\n".encode()
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
SICK = b"HTTP/1.1 500 Sick\r\nContent-Length: 2\r\n\r\n{}"
ASKED = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}], "input": "x"}

Write = Callable[[bytes], Awaitable[None]]


@dataclass
class Server:
    """A server whose answers to posts are a program's. check: its answers to health checks; b"" for none."""

    reply: Callable[[Write], Awaitable[None]]
    check: bytes = EMPTY
    url: str = ""
    posts: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        while head := await reader.readuntil(b"\r\n\r\n"):
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            if head.startswith(b"GET"):
                await (write(self.check) if self.check else asyncio.sleep(3600))
            else:
                self.posts += 1
                await self.reply(write)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        async with raw_server(self._serve) as self.url:
            yield self


@asynccontextmanager
async def fleet(*servers: Server, **more: Any) -> AsyncIterator[tuple[Gateway, Sequence[Replica]]]:
    """A gateway in front of these servers, which are running, and its replicas."""
    settings = {"name": "fleet", "replicas": [one.url for one in servers], "models": [MODEL], "n": "native", **more}
    async with gateway_for({"upstreams": [settings]}) as gateway:
        yield gateway, gateway.app.upstreams.all[0].gate.replicas


def streaming(piece: bytes) -> Callable[[Write], Awaitable[None]]:
    async def reply(write: Write) -> None:
        await write(STREAM)
        while True:
            await write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.05)

    return reply


@pytest.mark.parametrize("piece", [EVENT, b": processing\n\n"], ids=["events", "comments"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_server_that_sends_is_not_down_though_it_answers_no_check(path: str, piece: bytes) -> None:
    async with (
        Server(streaming(piece), check=b"").running() as busy,
        Server(streaming(piece)).running() as idle,
        fleet(busy, idle, health={"interval": 0.3, "timeout": 0.2}) as (gateway, replicas),
    ):

        async def ask() -> None:
            async with gateway.client.stream("POST", path, json=ASKED, timeout=30) as answer:
                async for _ in answer.aiter_bytes():
                    pass

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(ask()) for _ in range(4)]
            await until(lambda: busy.posts + idle.posts == 4)
            await asyncio.sleep(3.5)  # longer than a replica that sends nothing is left alone
            state = [(one.legs, one.health.down) for one in replicas]
            for one in asked:
                one.cancel()
        assert state == [(2, False), (2, False)]
        assert (busy.posts, idle.posts) == (2, 2), "no call was made again"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_the_head_of_an_error_closes_no_breaker(path: str) -> None:
    slow, go = asyncio.Event(), asyncio.Event()

    async def reply(write: Write) -> None:
        await write(SICK[:-2])
        if slow.is_set():
            await go.wait()
        await write(SICK[-2:])

    broken = {"breaker": {"in_a_row": 2, "open": 0.3}, "retries": {"per_leg": 0}, "health": {"interval": None}}
    async with (
        Server(reply).running() as bad,
        Server(reply).running() as worse,
        fleet(bad, worse, **broken) as (gateway, replicas),
    ):
        asked = {**ASKED, "stream": False}
        for _ in range(8):
            await gateway.client.post(path, json=asked)
        assert all(not one.breaker.closed for one in replicas)
        await asyncio.sleep(0.4)
        slow.set()
        trial = asyncio.create_task(gateway.client.post(path, json=asked))
        await until(lambda: any(one.legs for one in replicas))
        await asyncio.sleep(0.2)  # its head has come
        states = [one.breaker_state for one in replicas]
        go.set()
        await trial
        assert "closed" not in states


@pytest.mark.parametrize(("check", "again"), [(SICK, 0), (b"", 1)], ids=["answers checks badly", "answers none"])
async def test_a_post_that_is_worked_on_goes_to_no_other_server_while_the_first_lives(check: bytes, again: int) -> None:
    done: list[Server] = []

    async def work(write: Write) -> None:
        slow.check = check
        await asyncio.sleep(3.5)
        done.append(slow)
        await write(EMPTY)

    async def at_once(write: Write) -> None:
        await write(EMPTY)

    async with Server(work).running() as slow, Server(at_once).running() as other:
        health = {"interval": 0.3, "timeout": 0.2}
        preferred = [{"url": slow.url, "weight": 1000.0}, other.url]
        async with fleet(slow, other, health=health, replicas=preferred) as (gateway, replicas):
            answer = await gateway.client.post("/v1/responses", json={"model": MODEL, "input": "x"}, timeout=20)
            assert answer.status_code == 200
            assert (slow.posts, other.posts) == (1, again)
            assert replicas[0].health.down


async def test_a_replica_that_is_held_down_is_not_up() -> None:
    async with FakeUpstream(list_fails=True) as bad, FakeUpstream() as good:
        settings = {
            "name": "fleet",
            "replicas": [bad.url, good.url],
            "models": [MODEL],
            "health": {"interval": 0.2, "timeout": 0.2, "down_after": 1},
        }
        async with gateway_for({"upstreams": [settings]}) as gateway:
            first = gateway.app.upstreams.all[0].gate.replicas[0]
            await until(lambda: first.health.down)
            checks = len(bad.requests)
            await until(lambda: len(bad.requests) >= checks + 3)  # all answered, and badly
            assert await gateway.metric(f'nproxy_replica_up{{replica="{first.label}",upstream="fleet"}}') == 0
            bad.list_fails = False
            await until(lambda: not first.health.down)
            assert await gateway.metric(f'nproxy_replica_up{{replica="{first.label}",upstream="fleet"}}') == 1
