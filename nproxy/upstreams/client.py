"""One upstream call, as batches of leg events.

If the task that makes a call is cancelled, its socket is closed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from aiohttp import hdrs
from yarl import URL

from nproxy.choices.events import Event, Failure, FailureKind, LegBody, LegEnded, LegFailed
from nproxy.choices.failure_table import NO_CAPACITY, Follows, follows
from nproxy.choices.reading import LONGEST_START, begins_events
from nproxy.config import Timeouts
from nproxy.openai.body import Spliced
from nproxy.openai.frozen import frozen
from nproxy.upstreams.deadline import TimeLimits
from nproxy.upstreams.event_stream import EventStream, Take
from nproxy.upstreams.failures import (
    FOREIGN,
    after_the_head,
    before_the_head,
    malformed,
    oversize,
    redirected,
    timed_out,
)
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.errors import LateError
from nproxy.upstreams.http.head import Fields, request_head
from nproxy.upstreams.http.message import Head
from nproxy.upstreams.http.reply import Reply
from nproxy.upstreams.http.sending import Upload
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_after import retry_after, wait_in

EVENTS = "text/event-stream"
MAX_BODY = 128 << 20
"""Largest JSON answer for one choice, in bytes: 60,000 tokens, each with the log probabilities of 20 alternatives."""
MOST_CHOICES = 4
"""For more choices the limit is at most this many times as large, because the whole answer is held in memory."""
MAX_ERROR_BODY = 1 << 20
ERROR_BODY_SECONDS = 10.0


@frozen
class Call:
    """What one leg sends."""

    leg: int
    path: str
    """Below the replica's base."""
    fields: Fields
    """Header fields that all calls of the request have in common."""
    body: Spliced
    streamed: bool
    """The body asks for a stream of events."""
    own: Sequence[tuple[str, str]] = ()
    """Header fields of this call only."""
    own_key: bool = False
    """The headers carry nproxy's own credentials."""
    choices: int = 1
    """How many it asks for."""


class Client:
    """Calls the replicas of one upstream with its timeouts. name: of the upstream, for error messages to clients."""

    def __init__(self, connections: Connections, timeouts: Timeouts, name: str) -> None:
        self._connections = connections
        self._name = name
        self._connect_seconds = timeouts.connect
        self._limits = TimeLimits.of(timeouts)

    async def call(self, replica: Replica, call: Call, take: Take) -> None:
        """Send one leg and pass what comes back to `take`. The last event is LegEnded or LegFailed.

        What the network and the system raise becomes LegFailed.
        """
        started = self._connections.loop.time()
        limit = self._limits.first if call.streamed else self._limits.whole
        url, parts, deadline = replica.url(call.path), call.body.parts, started + limit.seconds
        reply = await self.send(replica, hdrs.METH_POST, url, call.fields, parts, deadline, call.own)
        if not isinstance(reply, Reply):
            take([LegFailed(call.leg, timed_out(limit.which) if isinstance(reply, TimeoutError) else reply)])
            return
        head = reply.head
        try:
            if (refusal := _refusal(head)) is not None:
                take([LegFailed(call.leg, refusal)])
            elif not 200 <= head.status < 300:
                take([LegFailed(call.leg, await self._status_failure(reply, call, started))])
            else:
                came = b"" if call.streamed and head.content_type == EVENTS else await self._body(reply, call, started)
                if isinstance(came, bytes):
                    await EventStream(reply, call.leg, started, self._limits, take, replica.lives).run(came)
                else:
                    take(came)
        finally:
            reply.close()

    async def send(
        self,
        replica: Replica,
        method: str,
        url: URL,
        fields: Fields,
        body: Sequence[bytes] | Upload,
        deadline: float,
        own: Sequence[tuple[str, str]] = (),
    ) -> Reply | TimeoutError | Failure:
        """Send a request and wait for the head of the answer. The caller closes the answer.

        body: its parts; empty for no body. deadline: for the head, in the loop's time. own: further header fields.
        Returns TimeoutError if the deadline has passed, and a Failure if no answer came for another reason.
        """
        connections, reply = self._connections, None
        size = body.size if isinstance(body, Upload) else sum(map(len, body))
        try:
            head = request_head(method, url, fields, size, via=connections.via, host=replica.authority, own=own)
            idle = connections.take(replica)
            connection = idle or await connections.connect(replica, url, self._connect_seconds, deadline)
            reply = connection.send(method, head, body)
            reply.watchdog.watch(deadline)
            await reply.begun()
            if reply.watchdog.expired:  # in the same turn of the event loop in which the head came
                return TimeoutError()
            reply.watchdog.watch(inf)
        except asyncio.CancelledError:
            if reply is not None:
                reply.close()
            raise
        except LateError:
            return TimeoutError()
        except FOREIGN as error:
            if reply is not None:
                if reply.watchdog.expired:
                    return TimeoutError()
                reply.close()
            stale = reply is not None and reply.stale
            if stale:
                connections.forget(replica)
            failure = before_the_head(error, stale=stale, upstream=self._name)
            if not failure.ours and follows(failure, Follows.NOT_REACHED):
                replica.unreachable()
            return failure
        replica.reached()
        return reply

    async def _status_failure(self, reply: Reply, call: Call, started: float) -> Failure:
        """Read an error answer within limits of size and time; a body that cannot be read is left out."""
        body, head, unread = bytearray(), reply.head, False
        now = self._connections.loop.time()
        try:
            async with asyncio.timeout_at(min(now + ERROR_BODY_SECONDS, started + self._limits.total)):
                while len(body) < MAX_ERROR_BODY and (data := await reply.read()):
                    body += data
        except FOREIGN:
            body.clear()
            unread = True
        kept = bytes(body[:MAX_ERROR_BODY])
        return Failure(
            FailureKind.STATUS,
            f"The upstream answered with status {head.status}.",
            status=head.status,
            content_type=head.headers.get(hdrs.CONTENT_TYPE, ""),
            body=kept,
            unread=unread,
            retry_after=_wait(head, kept),
            own_key=call.own_key,
        )

    async def _body(self, reply: Reply, call: Call, started: float) -> list[Event] | bytes:
        """Read a whole answer in JSON form.

        If it is a stream under another type, or one that was not asked for, what has come of it is returned. JSON may
        come under the type of a stream if none was asked for (9router).
        """
        leg, limit, declared = call.leg, self._limits.whole, reply.head.content_type == EVENTS
        most = MAX_BODY * min(call.choices, MOST_CHOICES)
        parts: list[bytes] = []
        size, start = 0, b""
        reply.watchdog.watch(started + limit.seconds)
        try:
            while True:
                if (data := reply.at_hand()) is None:
                    data = await reply.read()
                if not data:
                    break
                parts.append(data)
                size += len(data)
                if (call.streamed or declared) and len(start) < LONGEST_START:
                    start = (start + data).lstrip()[:LONGEST_START]
                    if begins_events(start) or (declared and start[:1] not in (b"", b"{")):
                        return b"".join(parts)
                if size > most:
                    why = f"The upstream's answer is larger than {most} bytes; streams have no such limit."
                    return [LegFailed(leg, oversize(why))]
        except FOREIGN as error:
            failure = timed_out(limit.which) if reply.watchdog.expired else after_the_head(error)
            return [LegFailed(leg, failure)]
        return [LegBody(leg, b"".join(parts)), LegEnded(leg)]


def _wait(head: Head, body: bytes) -> float | None:
    """Seconds that an error answer asks to wait, None if it does not: by its headers, else by its body's text.

    The text counts only if the status says that the server lacks capacity.
    """
    seconds = retry_after(head.headers)
    return wait_in(body) if seconds is None and head.status in NO_CAPACITY else seconds


def _refusal(head: Head) -> Failure | None:
    """Refuse answers that no OpenAI server sends and that would be misread; None for all others."""
    if 300 <= head.status < 400:
        return redirected()
    coding = head.headers.get(hdrs.CONTENT_ENCODING)
    if coding is not None and coding.strip().lower() not in ("identity", ""):
        return malformed("The upstream sent a compressed answer, although the request excluded it.")
    return None
