"""An answer in server-sent events, as batches of leg events, within the time limits for them.

What arrives in one segment becomes one batch, so that what is ready at the same moment can be sent in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TypeAlias

from nproxy.choices.events import Event, Failure, LegEnded, LegFailed
from nproxy.choices.segments import Chunks, one_by_one, read_segment
from nproxy.openai.chunks import LONGEST_MARK, is_done
from nproxy.openai.sse import SSEDecoder, SSEError
from nproxy.upstreams.deadline import TimeLimits
from nproxy.upstreams.failures import FOREIGN, after_the_head, oversize, timed_out
from nproxy.upstreams.http.reply import Reply

Take: TypeAlias = Callable[[list[Event]], asyncio.Future[None] | None]
"""Takes a batch of events, never empty. Returns a future to wait for before the next batch, None for no wait.

Other calls wait for the same future, so a call that is cancelled must not cancel it (`asyncio.shield`).
"""

AFTER_DONE_SECONDS = 1.0
"""How long after `[DONE]` the upstream may take to close its answer. Then its socket is closed instead of reused."""


class EventStream:
    """One answer in server-sent events. `run` is called once, and returns when the last batch was taken.

    started: when the call was made, in the loop's time. alive: called when bytes came that bring no event yet.
    """

    __slots__ = (
        "_alive",
        "_batch",
        "_clock",
        "_decoder",
        "_done",
        "_held",
        "_held_from",
        "_idle",
        "_leg",
        "_reply",
        "_started",
        "_take",
        "_total",
        "_watchdog",
        "_which",
    )

    def __init__(
        self, reply: Reply, leg: int, started: float, limits: TimeLimits, take: Take, alive: Callable[[], None]
    ) -> None:
        self._reply = reply
        self._alive = alive
        self._leg = leg
        self._take = take
        self._clock = reply.loop.time
        self._decoder = SSEDecoder()
        self._batch: list[Event] = []
        self._idle = limits.idle
        self._started = started
        self._total = started + limits.total
        self._done = False
        self._held = self._held_from = 0.0  # for how long the taker let it wait, and since when it does
        self._watchdog = reply.watchdog
        self._which = limits.first.which
        self._watchdog.watch(started + limits.first.seconds)

    async def run(self, came: bytes = b"") -> None:
        """Pass on everything that comes; the last batch ends with LegEnded or LegFailed.

        came: what was read before.
        """
        last: Event = LegEnded(self._leg)
        try:
            if came and (room := self._segment(came)) is not None:
                await asyncio.shield(room)
            await self._reply.pour(self._segment)
            self._note(one_by_one(self._leg, self._decoder.close()))
        except SSEError:
            last = LegFailed(self._leg, oversize("An event of the upstream is larger than the limit."))
        except FOREIGN as error:
            if not self._done:
                failure = self._timed_out() if self._watchdog.expired else after_the_head(error)
                last = LegFailed(self._leg, failure)
        self._take([*self._batch, last])

    def _segment(self, data: bytes) -> asyncio.Future[None] | None:
        chunks = read_segment(self._leg, self._decoder, data)
        self._note(chunks)
        if self._reply.at_end:
            return None  # the last events, which `run` takes
        if not chunks:
            self._alive()
            return None  # half an event, or a comment, which meets no deadline
        batch, self._batch = self._batch, []
        room = self._take(batch)
        if room is None:
            self._listen()
        else:
            self._watchdog.watch(inf)  # while the client is slow, the upstream is not to blame
            self._held_from = self._clock()
            room.add_done_callback(self._go_on)
        return room

    def _go_on(self, _: object) -> None:
        self._held += self._clock() - self._held_from
        self._listen()

    def _timed_out(self) -> Failure:
        """A time limit has passed. `total` also runs while the client is slow, which may be most of it."""
        failure = timed_out(self._which)
        of_client = self._which == "total" and 2 * self._held > self._clock() - self._started
        return replace(failure, ours=True) if of_client else failure

    def _note(self, chunks: Chunks) -> None:
        self._batch += chunks
        for chunk in chunks:
            if len(chunk.data) <= LONGEST_MARK and is_done(chunk.data):  # the length is compared first to avoid a call
                self._done, self._total = True, min(self._total, self._clock() + AFTER_DONE_SECONDS)

    def _listen(self) -> None:
        """Start the time limit for the next event."""
        at, self._which = self._clock() + self._idle, "idle"
        if self._total < at:
            at, self._which = self._total, "total"
        self._watchdog.watch(at)
