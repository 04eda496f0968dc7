"""Distributes the results of the core's steps to the requests that wait for them.

One task reads the steps. What a step drew for a request is put into its inbox at once, and the request's own task finds
all of it when it wakes, so everything from one step is sent in one write. An inbox is bounded, so that a slow reader
costs other requests nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from engine.channel import CoreClient
from engine.limits import Limits
from engine.messages import Abort, Add, Embed, Started, TokenDrawn
from engine.server.failures import error_of, stopped
from engine.server.metrics import Metrics
from nproxy.openai.errors import ApiError, invalid_request

Event = Started | TokenDrawn
"""What a step reports about a group that goes on: Started, then TokenDrawn."""

FULL = 65_536
"""Events that may wait for one request: a minute of 32 choices on a fast CPU."""

_AGAIN_SECONDS = 0.2  # until a core that had no room for one of several prompts is asked again
_VECTORS_AT_ONCE = 64  # per request in the core, and at most what runs at once, so a long list does not fill the queue


class Inbox:
    """What the core has drawn for one request and the request has not taken yet.

    rules: the request's fields that exclude tokens, as in `groups.rules`.
    """

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self.rules = rules
        self._events: list[Event] = []
        self._error: ApiError | None = None
        self._filled = asyncio.Event()

    def put(self, events: Iterable[Event]) -> None:
        """Add what one step reported. A full inbox fails its request instead; a failed one ignores further events."""
        if self._error is not None:
            return
        self._events.extend(events)
        if len(self._events) > FULL:
            self._events.clear()
            self.fail(
                ApiError(408, "The client did not read the answer in time.", type="server_error", code="slow_reader")
            )
        self._filled.set()

    def fail(self, error: ApiError) -> None:
        """End the request with this error, after the events that are there; only the first error counts."""
        self._error = self._error or error
        self._filled.set()

    async def take(self) -> list[Event]:
        """Wait for events and return all that are there; raise the error once they have been taken."""
        await self._filled.wait()
        if not self._events and self._error is not None:
            raise self._error
        events, self._events = self._events, []
        if self._error is None:
            self._filled.clear()
        return events


class Ticket:
    """One request's groups in the core, one for each prompt, in order.

    over: set by the request when all its choices have ended, so that nothing is left to abort.
    """

    def __init__(self, core: CoreClient, groups: tuple[int, ...], inbox: Inbox) -> None:
        self._core = core
        self.groups = groups
        self.inbox = inbox
        self.over = False

    def cut(self, choices: Iterable[tuple[int, int]]) -> None:
        """End these choices (group, choice) in the core, because a stop string ended them here."""
        by_group: defaultdict[int, list[int]] = defaultdict(list)
        for group, choice in choices:
            by_group[group].append(choice)
        for group, numbers in by_group.items():
            self._core.abort(Abort(group, tuple(numbers)))


class Router:
    """Owns the core's client: opens groups for requests and distributes the results of steps."""

    def __init__(self, core: CoreClient, metrics: Metrics) -> None:
        self._core = core
        self._metrics = metrics
        self._inboxes: dict[int, Inbox] = {}
        self._vectors: dict[int, asyncio.Future[tuple[float, ...]]] = {}
        self._numbers = itertools.count()
        self._over: ApiError | None = None
        self.ready = core.ready

    async def run(self) -> None:
        """Distribute steps until the core is closed. If the core has ended, fail all requests and raise CoreFailed."""
        try:
            async for step in self._core:
                self._metrics.observe(step)
                # Failures come first: if one prompt of a request fails in its first step, nothing else is sent.
                for failed in step.failed:
                    if (inbox := self._inboxes.get(failed.group)) is not None:
                        inbox.fail(error_of(failed, inbox.rules))
                    elif (vector := self._vectors.get(failed.group)) is not None and not vector.done():
                        vector.set_exception(error_of(failed))
                by_group: defaultdict[int, list[Event]] = defaultdict(list)
                for started in step.started:
                    by_group[started.group].append(started)
                for token in step.tokens:
                    by_group[token.group].append(token)
                for group, events in by_group.items():
                    if (inbox := self._inboxes.get(group)) is not None:
                        inbox.put(events)
                for embedded in step.embedded:
                    if (vector := self._vectors.get(embedded.group)) is not None and not vector.done():
                        vector.set_result(embedded.vector)
        finally:
            self.end(stopped())

    @property
    def silence(self) -> float:
        """Seconds for which the core has owed a step."""
        return self._core.silence

    @property
    def idle(self) -> bool:
        """Whether no request has a group in the core."""
        return not self._inboxes and not self._vectors

    def end(self, error: ApiError) -> None:
        """End every open request with this error, and refuse new ones with it; only the first error counts."""
        self._over = self._over or error
        for inbox in self._inboxes.values():
            inbox.fail(error)
        for vector in self._vectors.values():
            if not vector.done():
                vector.set_exception(error)

    @contextmanager
    def submit(self, adds: Sequence[Add], rules: Sequence[str] = ()) -> Iterator[Ticket]:
        """Add these groups, under the router's own numbers; on exit, abort what still runs.

        rules: as in Inbox. Raises ApiError if the core takes no more, or could not take so many even if it were idle.
        """
        if self._over is not None:
            raise self._over
        count = sum([len(add.choices) for add in adds])
        if len(adds) > 1:
            self._check(adds, count)
        inbox = Inbox(rules)
        ticket = Ticket(self._core, tuple(next(self._numbers) for _ in adds), inbox)
        for group, add in zip(ticket.groups, adds, strict=True):
            self._inboxes[group] = inbox
            count -= len(add.choices)
            self._core.add(replace(add, group=group, to_come=count))
        try:
            yield ticket
        finally:
            for number in ticket.groups:
                del self._inboxes[number]
                if not ticket.over:
                    self._core.abort(Abort(number))

    def _check(self, adds: Sequence[Add], count: int) -> None:
        """Raise ApiError 400 if several groups of `count` choices can never run.

        The core sees one group at a time, and another one may have begun when it refuses one.
        """
        if count > (room := self._core.config.room):
            message = (
                f"{len(adds)} prompts ask for {count} choices in total; this engine allows at most {room} at once."
            )
            raise invalid_request(message, code="request_too_large")
        limits = Limits(self._core.config, self.ready)
        for add in adds:
            if reason := limits.refusal(add):
                raise invalid_request(reason, code="request_too_large")

    async def embed(self, messages: Sequence[Embed]) -> list[tuple[float, ...]]:
        """Return the vectors of these prompts, in order, each computed under one of the router's own numbers.

        Raises ApiError if the core takes no more when the first ones are added, or fails one of them. In that case, and
        if cancelled, what still runs is aborted. A core that takes no more later is asked again, since the vectors that
        are there would be lost.
        """
        at_once = asyncio.Semaphore(min(_VECTORS_AT_ONCE, self._core.config.max_sequences))
        computed = 0

        async def vector(message: Embed) -> tuple[float, ...]:
            nonlocal computed
            async with at_once:
                while True:
                    try:
                        done = await self._embed(message)
                    except ApiError as error:
                        if error.status != 429 or not computed:
                            raise
                        await asyncio.sleep(_AGAIN_SECONDS)
                    else:
                        computed += 1
                        return done

        try:
            async with asyncio.TaskGroup() as group:
                vectors = [group.create_task(vector(message)) for message in messages]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [one.result() for one in vectors]

    async def _embed(self, message: Embed) -> tuple[float, ...]:
        if self._over is not None:
            raise self._over
        number = next(self._numbers)
        vector: asyncio.Future[tuple[float, ...]] = asyncio.get_running_loop().create_future()
        self._vectors[number] = vector
        self._core.add(replace(message, group=number))
        try:
            return await vector
        finally:
            del self._vectors[number]
            if vector.cancelled():
                self._core.abort(Abort(number))
