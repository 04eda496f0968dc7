"""The driver: carries out what the conduct of one request commands, and reports to it what happens.

It decides nothing. One TaskGroup holds the request's legs; whatever way the request ends, they end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from nproxy.choices.commands import (
    Anomaly,
    Begin,
    CallEnded,
    CancelLeg,
    ChoiceFinished,
    Command,
    Emit,
    FallBack,
    Finish,
    Learn,
    OpenLeg,
    Respond,
    Resumed,
    Retried,
    SetTimer,
    Spent,
)
from nproxy.choices.conduct import Conduct
from nproxy.choices.events import Event, Failure, TimerFired
from nproxy.choices.lessons import Lesson
from nproxy.gateway.exchange import ClientLeft, Exchange
from nproxy.gateway.inbox import Inbox
from nproxy.gateway.observe import Observer
from nproxy.openai.errors import ApiError
from nproxy.openai.wire import error_event
from nproxy.upstreams.event_stream import Take

OpenCall = Callable[[OpenLeg, Take], Awaitable[None]]
"""Makes the upstream call of a leg, and hands over what comes of it."""

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Drive:
    """One request on its way from plan to answer. `run` once; `end` from outside makes it stop early.

    fell_back: it is over, the client has nothing, and another upstream is to be asked.
    """

    def __init__(
        self,
        exchange: Exchange,
        conduct: Conduct,
        observer: Observer,
        *,
        open_call: OpenCall,
        learn: Callable[[Lesson], None],
        judge: Callable[[int, Failure | None], None],
    ) -> None:
        self._exchange = exchange
        self._conduct = conduct
        self._observer = observer
        self._open_call = open_call
        self._learn = learn
        self._judge = judge
        self._inbox = Inbox()
        self._decided: Sequence[Command] = ()  # by what was dealt with, and not carried out yet
        self._legs: dict[int, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by name, which is set again once it has fired
        self.fell_back: FallBack | None = None
        self._finished = False
        self._ended_by: ApiError | None = None

    @property
    def exchange(self) -> Exchange:
        """The request that is driven."""
        return self._exchange

    async def run(self) -> None:
        """Drive the request to its end. Raises ClientLeft, and CancelledError when the client's connection is lost."""
        left: ClientLeft | None = None
        async with asyncio.TaskGroup() as legs:
            try:
                await self._drive(legs)
            except ClientLeft as gone:  # kept out of the group, which would wrap it
                left = gone
            finally:
                for timer in self._timers.values():
                    timer.cancel()
                for task in self._legs.values():
                    task.cancel()
        if left is not None:
            raise left

    def end(self, error: ApiError) -> None:
        """Stop the request with an error: the drain limit is reached."""
        self._ended_by = error
        self._inbox.put_now(())

    async def _drive(self, legs: asyncio.TaskGroup) -> None:
        await self._carry_out(self._conduct.start(), legs)
        while not self._finished:
            events = await self._inbox.take(self._deal)
            if self._ended_by is not None:
                await self._break_off(self._ended_by)
                return
            decided, self._decided = self._decided, ()
            since = self._conduct.receive(events) if events else ()
            await self._carry_out([*decided, *since], legs)

    def _deal(self, events: Sequence[Event]) -> bool:
        """Pass on what is nothing but more of the answer, while the client takes it; the rest is for `_drive`."""
        if self._ended_by is not None:
            return False
        self._decided = commands = self._conduct.receive(events)
        output: list[bytes] = []
        for command in commands:
            if not isinstance(command, Emit):
                return False
            output.append(command.data)
        if output and not self._exchange.write_now(_joined(output)):
            return False
        self._decided = ()
        return True

    async def _carry_out(self, commands: Sequence[Command], legs: asyncio.TaskGroup) -> None:
        """Do what the conduct says: what takes no time first, then one write for all that is to be written."""
        output: list[bytes] = []
        begin: Begin | None = None
        respond: Respond | None = None
        for command in commands:
            if (act := AT_ONCE.get(type(command))) is not None:
                act(self, command)
            elif isinstance(command, Emit):
                output.append(command.data)
            elif isinstance(command, OpenLeg):
                self._open(command, legs)
            elif isinstance(command, Begin):
                begin = command
            elif isinstance(command, Respond):
                respond = command
        if respond is not None:
            self._tell(respond.headers)
            await self._exchange.respond(respond.status, respond.body)
        elif begin is not None or output or self._finished:
            await self._write(begin, _joined(output))

    async def _write(self, begin: Begin | None, output: bytes) -> None:
        """Write more of a stream, and its head first where it begins, and its end where it is over."""
        exchange = self._exchange
        if begin is not None:
            self._tell(begin.headers)
            await exchange.begin(200, STREAM_HEADERS)
        if self.fell_back is not None:
            return
        if self._finished:
            await exchange.finish(output)
        elif output:
            await exchange.write(output)
        elif begin is not None:
            exchange.flush_head()

    def _tell(self, headers: Iterable[tuple[str, str]]) -> None:
        """Take these over those of the plan: it may have gone otherwise. Log and metrics say what the client reads."""
        self._exchange.headers.update(headers)
        self._exchange.mode = self._exchange.headers["x-nproxy-mode"]

    async def _break_off(self, error: ApiError) -> None:
        self._exchange.outcome = "ended"
        if self._exchange.response is None:
            await self._exchange.respond_error(error)
        else:
            await self._exchange.finish(error_event(error))

    # ---- commands that are carried out at once

    def _cancel_leg(self, command: CancelLeg) -> None:
        if (task := self._legs.pop(command.leg, None)) is not None:
            task.cancel()

    def _set_timer(self, command: SetTimer) -> None:
        if isfinite(command.seconds):
            loop = asyncio.get_running_loop()
            fired = (TimerFired(command.name),)
            self._timers[command.name] = loop.call_later(command.seconds, self._inbox.put_now, fired)

    def _fall_back(self, command: FallBack) -> None:
        self.fell_back = command

    def _teach(self, command: Learn) -> None:
        self._learn(command.lesson)

    def _call_ended(self, command: CallEnded) -> None:
        self._observer.call_ended(command.leg, command.failure)
        self._judge(command.leg, command.failure)

    def _finish(self, command: Finish) -> None:
        self._finished = True
        self._exchange.outcome = command.outcome

    # ---- calls

    def _open(self, command: OpenLeg, legs: asyncio.TaskGroup) -> None:
        self._exchange.attempts += 1
        self._legs[command.leg.number] = legs.create_task(self._run_leg(command))

    async def _run_leg(self, command: OpenLeg) -> None:
        number = command.leg.number
        self._observer.leg_opened(command.leg, command.attempt)
        task = self._legs[number]

        def take(batch: list[Event]) -> asyncio.Future[None] | None:
            if self._legs.get(number) is not task:
                return None  # cancelled in this very turn
            self._observer.batch(number, batch)
            return self._inbox.put(batch)

        try:
            await self._open_call(command, take)
        finally:
            self._observer.leg_closed()


AT_ONCE: Mapping[type[Command], Callable[[Drive, Any], None]] = {
    CancelLeg: Drive._cancel_leg,
    SetTimer: Drive._set_timer,
    FallBack: Drive._fall_back,
    Learn: Drive._teach,
    CallEnded: Drive._call_ended,
    Finish: Drive._finish,
    Anomaly: lambda drive, command: drive._observer.anomaly(command.kind),
    Resumed: lambda drive, command: drive._observer.resumed(command.leg, command.how, command.outcome),
    Retried: lambda drive, command: drive._observer.retried(command.leg, command.reason),
    ChoiceFinished: lambda drive, command: drive._observer.choice_finished(command),
    Spent: lambda drive, command: drive._observer.spent(command),
}
"""What carries out which command; the others, of what is written and of calls, `_carry_out` looks after itself."""


def _joined(output: list[bytes]) -> bytes:
    return output[0] if len(output) == 1 else b"".join(output)
