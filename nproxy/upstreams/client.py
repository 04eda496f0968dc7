"""One upstream call, as batches of leg events.

What arrives in one segment becomes one batch, so that what is ready at the same moment can leave in one write.
A call is an async generator: closing it, or cancelling the task that runs it, closes the socket at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from aiohttp import hdrs
from yarl import URL

from nproxy.choices.events import Event, Failure, FailureKind, LegBegan, LegBody, LegChunk, LegEnded, LegFailed
from nproxy.config import Timeouts
from nproxy.openai.body import Spliced
from nproxy.openai.sse import SSEDecoder, SSEError
from nproxy.upstreams.failures import FOREIGN, after_the_head, before_the_head, malformed, timed_out
from nproxy.upstreams.http.connection import Reply
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.errors import ConnectTimeoutError
from nproxy.upstreams.http.message import Head
from nproxy.upstreams.http.sending import Upload
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_after import retry_after
from nproxy.upstreams.watchdog import Watchdog

MAX_BODY = 128 << 20
"""Bytes of a JSON answer of one choice: 60,000 tokens, each with the 20 likeliest and their log probabilities."""
MOST_CHOICES = 4
"""So many times as much is taken for more choices, since the answer is in memory as a whole."""
MAX_ERROR_BODY = 1 << 20
ERROR_BODY_SECONDS = 10.0
AFTER_DONE_SECONDS = 1.0
"""How long after `[DONE]` the upstream may take to close its answer before the socket is given up instead of reused."""

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Call:
    """What one leg sends. path: below the replica's base. streamed: the body asks for a stream of events.

    own_key: the headers carry nproxy's own credentials. choices: how many it asks for.
    """

    leg: int
    path: str
    headers: Mapping[str, str]
    body: Spliced
    streamed: bool
    own_key: bool = False
    choices: int = 1


@dataclass(frozen=True, slots=True)
class _Deadline:
    """The next time limit of a call, in the loop's time, and the `timeouts` key that it comes from."""

    at: float
    which: str

    @classmethod
    def soonest(cls, *limits: tuple[str, float, float | None]) -> _Deadline:
        """The first to pass of some (key, start, seconds or None)."""
        return min(
            (cls(start + seconds, which) for which, start, seconds in limits if seconds is not None),
            key=lambda deadline: deadline.at,
            default=cls(inf, "total"),
        )


class Client:
    """Calls the replicas of one upstream, under its timeouts; its name is told to clients where it fails."""

    def __init__(self, connections: Connections, timeouts: Timeouts, name: str) -> None:
        self._connections = connections
        self._name = name
        self._timeouts = timeouts

    async def call(self, replica: Replica, call: Call) -> AsyncGenerator[list[Event]]:
        """Send one leg and give what comes back. The last event is LegEnded or LegFailed; nothing is raised."""
        started = asyncio.get_running_loop().time()
        reply = await self._begun(replica, call, started)
        if isinstance(reply, Failure):
            yield [LegFailed(call.leg, reply)]
            return
        head = reply.head
        try:
            if (refusal := _refusal(head)) is not None:
                yield [LegFailed(call.leg, refusal)]
            elif not 200 <= head.status < 300:
                yield [LegFailed(call.leg, await self._status_failure(reply, call))]
            elif head.content_type == "text/event-stream":
                with Watchdog(reply.close) as watchdog:
                    events = self._events(reply, call.leg, started, watchdog)
                    try:
                        async for batch in events:
                            yield batch
                    finally:
                        await events.aclose()
            else:
                yield await self._body(reply, call, started)
        finally:
            reply.close()

    async def send(
        self,
        replica: Replica,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Sequence[bytes] | Upload,
        deadline: float,
    ) -> Reply | TimeoutError | Failure:
        """Send a request and wait for the answer's head until `deadline`, in the loop's time; the caller closes it.

        body: its parts, none for no body.
        """
        waiting = asyncio.timeout_at(deadline if deadline < inf else None)
        reply: Reply | None = None
        try:
            async with waiting:
                reply = await self._connections.send(replica, method, url, headers, body, self._timeouts.connect)
                await reply.begun()
        except asyncio.CancelledError:
            if reply is not None:
                reply.close()
            raise
        except FOREIGN as error:
            if reply is not None:
                reply.close()
            if waiting.expired():
                return TimeoutError()
            reused = reply is not None and reply.reused
            failure = before_the_head(error, reused=reused, upstream=self._name)
            if not failure.ours and (failure.kind is FailureKind.CONNECT or isinstance(error, ConnectTimeoutError)):
                replica.unreachable()
            return failure
        replica.reached()
        return reply

    async def _begun(self, replica: Replica, call: Call, started: float) -> Reply | Failure:
        times = self._timeouts
        limit = ("first_event", started, times.first_event) if call.streamed else ("response", started, times.response)
        deadline = _Deadline.soonest(limit, ("total", started, times.total))
        body = call.body
        parts = (body.head, body.tail)
        reply = await self.send(replica, hdrs.METH_POST, replica.url(call.path), call.headers, parts, deadline.at)
        return timed_out(deadline.which) if isinstance(reply, TimeoutError) else reply

    async def _status_failure(self, reply: Reply, call: Call) -> Failure:
        """Read an error answer as far as it is sensible; what cannot be read is left out."""
        body, head = bytearray(), reply.head
        try:
            async with asyncio.timeout(ERROR_BODY_SECONDS):
                while len(body) < MAX_ERROR_BODY and (data := await reply.read()):
                    body += data
        except FOREIGN:
            body.clear()
        return Failure(
            FailureKind.STATUS,
            f"The upstream answered with status {head.status}.",
            status=head.status,
            content_type=head.headers.get(hdrs.CONTENT_TYPE, ""),
            body=bytes(body[:MAX_ERROR_BODY]),
            retry_after=retry_after(head.headers),
            own_key=call.own_key,
        )

    async def _body(self, reply: Reply, call: Call, started: float) -> list[Event]:
        """Read an answer in JSON form whole."""
        times, leg = self._timeouts, call.leg
        limit = MAX_BODY * min(call.choices, MOST_CHOICES)
        deadline = _Deadline.soonest(("response", started, times.response), ("total", started, times.total))
        began = LegBegan(leg, sse=False)
        parts: list[bytes] = []
        size = 0
        waiting = asyncio.timeout_at(deadline.at if deadline.at < inf else None)
        try:
            async with waiting:
                while data := await reply.read():
                    parts.append(data)
                    size += len(data)
                    if size > limit:
                        why = f"The upstream's answer is larger than {limit} bytes; a stream has no such limit."
                        return [began, LegFailed(leg, _oversize(why))]
        except FOREIGN as error:
            failure = timed_out(deadline.which) if waiting.expired() else after_the_head(error)
            return [began, LegFailed(leg, failure)]
        return [began, LegBody(leg, b"".join(parts)), LegEnded(leg)]

    async def _events(self, reply: Reply, leg: int, started: float, watchdog: Watchdog) -> AsyncGenerator[list[Event]]:
        """Read an answer as server-sent events, a batch for each segment that completes at least one."""
        times, clock = self._timeouts, asyncio.get_running_loop().time
        decoder = SSEDecoder()
        total = _Deadline.soonest(("total", started, times.total))
        deadline = _Deadline.soonest(("first_event", started, times.first_event), ("total", started, times.total))
        idle = inf if times.idle is None else times.idle
        batch: list[Event] = [LegBegan(leg, sse=True)]
        done = False
        at, which = deadline.at, deadline.which
        while True:
            watchdog.watch(at)
            try:
                data = await reply.read()
                events = decoder.feed(data) if data else decoder.close()
            except SSEError:
                yield [*batch, LegFailed(leg, _oversize("An event of the upstream is larger than is allowed."))]
                return
            except FOREIGN as error:
                failure = timed_out(which) if watchdog.expired else after_the_head(error)
                yield [*batch, LegEnded(leg) if done else LegFailed(leg, failure)]
                return
            batch += [LegChunk(leg, data, name) for data, name in events]
            if not data or reply.at_end:
                if data:
                    batch += [LegChunk(leg, data, name) for data, name in decoder.close()]
                batch.append(LegEnded(leg))
                yield batch
                return
            if not events:
                continue  # half an event, or a comment, which satisfies no deadline
            if events[-1].data == _DONE or (len(events) > 1 and any(event.data == _DONE for event in events)):
                done, idle = True, AFTER_DONE_SECONDS
            watchdog.watch(inf)  # while the client is slow, the upstream is not to blame
            yield batch
            batch = []
            at, which = clock() + idle, "idle"
            if total.at < at:
                at, which = total.at, "total"


def _refusal(head: Head) -> Failure | None:
    """Refuse answers that no OpenAI server gives and that would be misread."""
    if 300 <= head.status < 400:
        return malformed("The upstream answered with a redirect, which is not followed.")
    if head.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() not in ("identity", ""):
        return malformed("The upstream sent a compressed answer although it was asked not to.")
    return None


def _oversize(message: str) -> Failure:
    return Failure(FailureKind.OVERSIZE, message)
