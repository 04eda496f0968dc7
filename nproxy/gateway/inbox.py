"""The queue in which the events of legs and timers wait for the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nproxy.choices.events import Event

MOST_BATCHES = 16
"""Batches that may wait before legs stop reading."""

Deal = Callable[[list[Event]], bool]
"""Handles the events that came while the taker waits; returns False if the taker has to be woken."""


class Inbox:
    """A queue of batches of events from many legs and timers, for one taker, in the order of arrival.

    It gives back-pressure: if `most` batches wait, a leg that puts another one waits until the inbox is emptied, and so
    stops reading from its upstream. All events are taken at once, so that what is ready at the same moment leaves in
    one write.
    """

    def __init__(self, most: int = MOST_BATCHES) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._batches = 0
        self._taker: asyncio.Future[None] | None = None
        self._deal: Deal | None = None  # of the waiting taker; dropped after the wait, as it refers back to the inbox
        self._dealing = False  # whether `_deal_with_all` is scheduled
        self._room: asyncio.Future[None] | None = None

    def put_now(self, events: Sequence[Event]) -> None:
        """Add events without waiting: for timers, and for the end of the request."""
        self._events += events
        self._batches += 1
        if self._taker is not None and not self._dealing:
            self._dealing = True
            self._loop.call_soon(self._deal_with_all)

    def put(self, events: Sequence[Event]) -> asyncio.Future[None] | None:
        """Add events. If the inbox is full, return a future that is done when it has been emptied, else None.

        All that wait get the same future: none of them may cancel it.
        """
        self.put_now(events)
        if self._batches < self._most:
            return None
        if self._room is None:
            self._room = self._loop.create_future()
        return self._room

    async def take(self, deal: Deal) -> list[Event]:
        """Wait until there is something for the taker to do, and return all events that have come and are not handled.

        deal: called by the event loop with the events that come while the taker waits. To wake a task, through all its
        coroutines, costs as much as to handle a chunk of text. If it returns False or raises, the taker is woken.
        """
        if not self._batches:
            self._taker, self._deal = self._loop.create_future(), deal
            try:
                await self._taker
            finally:
                self._taker = self._deal = None
        return self.take_all()

    def _deal_with_all(self) -> None:
        self._dealing = False
        taker, deal = self._taker, self._deal
        if taker is None or deal is None or taker.done():
            return  # the taker takes the events itself, or was cancelled
        try:
            if not deal(self.take_all()):
                taker.set_result(None)
        except Exception as fault:  # raised in the taker, not in the loop's callback
            taker.set_exception(fault)

    def take_all(self) -> list[Event]:
        """Return all events that have come and are not handled."""
        events, self._events, self._batches = self._events, [], 0
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        return events
