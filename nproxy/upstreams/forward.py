"""Requests that are forwarded unchanged: bytes up and bytes down, nothing is interpreted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import inf

from aiohttp import hdrs
from multidict import MultiMapping
from yarl import URL

from nproxy.choices.events import Failure
from nproxy.concurrency.tasks import beside
from nproxy.config import Timeouts
from nproxy.upstreams.client import Client
from nproxy.upstreams.failures import FOREIGN, after_the_head, slow_upload, timed_out
from nproxy.upstreams.http.head import Fields
from nproxy.upstreams.http.reply import Reply
from nproxy.upstreams.http.sending import Upload
from nproxy.upstreams.replicas import Replica


class ForwardError(Exception):
    """A forwarded request failed at the transport level; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of a forwarded answer, and its body as it comes. chunks: raises ForwardError if the body breaks off."""

    status: int
    headers: MultiMapping[str]
    chunks: AsyncGenerator[bytes]


@asynccontextmanager
async def forward(
    client: Client,
    timeouts: Timeouts,
    replica: Replica,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    data: bytes | AsyncIterator[bytes] | None,
) -> AsyncIterator[Answer]:
    """Send a request and yield its answer. When the block is left, the connection is closed or reused.

    data: the body, whole or as it comes. Raises ForwardError if no answer comes.
    """
    started = asyncio.get_running_loop().time()
    deadline = inf if timeouts.response is None else started + timeouts.response
    async with AsyncExitStack() as going_up:
        body: Sequence[bytes] | Upload = ()
        if isinstance(data, AsyncIterator):
            length = headers.get(hdrs.CONTENT_LENGTH)
            body = Upload(data, None if length is None else int(length))
            await going_up.enter_async_context(beside(body.run()))
        elif data is not None:
            body = (data,)
        come = await client.send(replica, method, url, Fields.of(headers), body, deadline)
        if isinstance(come, TimeoutError) and isinstance(body, Upload) and body.receiving:
            raise ForwardError(slow_upload())
        reply = _come(come)
        head, chunks = reply.head, _chunks(reply, timeouts, replica)
        try:
            yield Answer(head.status, head.headers, chunks)
        finally:
            await chunks.aclose()
            reply.close()


def _come(reply: Reply | TimeoutError | Failure) -> Reply:
    if isinstance(reply, TimeoutError):
        raise ForwardError(timed_out("response"))
    if isinstance(reply, Failure):
        raise ForwardError(reply)
    return reply


async def _chunks(reply: Reply, timeouts: Timeouts, replica: Replica) -> AsyncGenerator[bytes]:
    idle = inf if timeouts.idle is None else timeouts.idle
    clock = asyncio.get_running_loop().time
    watchdog = reply.watchdog
    while True:
        watchdog.watch(clock() + idle)
        try:
            data = await reply.read()
        except FOREIGN as error:
            raise ForwardError(timed_out("idle") if watchdog.expired else after_the_head(error)) from error
        if not data:
            return
        watchdog.watch(inf)
        replica.lives()
        yield data


async def fetch(
    client: Client, replica: Replica, path: str, headers: Mapping[str, str], *, seconds: float, limit: int
) -> tuple[int, bytes]:
    """GET a small document below the replica's base within `seconds`; return its status and at most `limit` bytes.

    Raises ForwardError if the answer does not come whole, unless it is longer than `limit`.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    reply = _come(await client.send(replica, "GET", replica.root_url(path), Fields.of(headers), (), deadline))
    body = bytearray()
    try:
        async with asyncio.timeout_at(deadline) as timer:
            while data := await reply.read():
                body += data
                if len(body) > limit:
                    break
    except FOREIGN as error:
        raise ForwardError(timed_out("response") if timer.expired() else after_the_head(error)) from error
    finally:
        reply.close()
    return reply.head.status, bytes(body[:limit])
