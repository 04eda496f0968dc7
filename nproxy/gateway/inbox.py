"""Where the legs' events wait for the conduct."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nproxy.choices.events import Event

MOST_BATCHES = 16


Deal = Callable[[list[Event]], bool]
"""Takes what has come while the taker waits, and says whether that was all there is to do."""


class Inbox:
    """Batches of events from many legs and timers for one taker, in the order in which they came.

    Bounded: with `most` batches waiting, a leg that puts one waits until the taker has come, and so stops reading its
    upstream. What is there is taken all at once, so that what is ready at the same moment leaves in one write.
    """

    def __init__(self, most: int = MOST_BATCHES) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._batches = 0
        self._taker: asyncio.Future[None] | None = None
        self._deal: Deal | None = None  # of the taker that waits; kept no longer, for it knows the inbox itself
        self._dealing = False  # at the end of the turn
        self._room: asyncio.Future[None] | None = None

    def put_now(self, events: Sequence[Event]) -> None:
        """Add events without waiting: for timers, and to wake the taker (with none)."""
        self._events += events
        self._batches += 1
        if self._taker is not None and not self._dealing:
            self._dealing = True
            self._loop.call_soon(self._deal_with_all)

    def put(self, events: Sequence[Event]) -> asyncio.Future[None] | None:
        """Add events; when the inbox is full, give what to wait for: it has been emptied."""
        self.put_now(events)
        if self._batches < self._most:
            return None
        if self._room is None:
            self._room = self._loop.create_future()
        return self._room

    async def take(self, deal: Deal) -> list[Event]:
        """Wait until something was put that is not dealt with, and take everything that has come since.

        deal: is given what comes meanwhile, by the loop at the end of its turn: to wake a task, with all the coroutines
        that it has come through, costs as much as to deal with a piece of text. Where it says that this was not all,
        and where it raises, the taker is woken.
        """
        if not self._batches:
            self._taker, self._deal = self._loop.create_future(), deal
            try:
                await self._taker
            finally:
                self._taker = self._deal = None
        return self._all()

    def _deal_with_all(self) -> None:
        self._dealing = False
        taker, deal = self._taker, self._deal
        if taker is None or deal is None or taker.done():
            return  # it takes them itself, or has left
        try:
            if not deal(self._all()):
                taker.set_result(None)
        except Exception as fault:  # the taker's, not the loop's
            taker.set_exception(fault)

    def _all(self) -> list[Event]:
        events, self._events, self._batches = self._events, [], 0
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        return events
