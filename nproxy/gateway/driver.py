"""The driver: executes the commands of one request's conduct, and reports to the conduct what happens.

It decides nothing about choices; it only paces how many legs are opened in one iteration of the event loop. One
TaskGroup holds the request's legs; however the request ends, its legs end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
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
from nproxy.choices.events import Event, Failure, Stopped, Timer, TimerFired
from nproxy.choices.lessons import Lesson
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.inbox import Inbox
from nproxy.gateway.observe import Observer
from nproxy.gateway.response_writer import ClientLeft
from nproxy.openai.errors import ApiError
from nproxy.openai.wire import STREAM_HEADERS
from nproxy.upstreams.event_stream import Take

OpenCall = Callable[[OpenLeg, Take], Awaitable[None]]
"""Makes the upstream call of a leg, and passes its events to `Take`."""

BUSY_TURN = 0.0005
"""Seconds: if an iteration of the event loop takes longer, the loop is busy."""
OPENED_WHEN_BUSY = 8
"""Legs of one request that a busy iteration opens: about as much work as the iteration itself. Others open one."""


class Drive:
    """Drives one request at one upstream, from its plan to its answer. Call `run` once; `end` stops it early.

    fell_back: set if another upstream is to be asked; else None. If none can be, call `fail`.
    """

    def __init__(
        self,
        exchange: Exchange,
        conduct: Conduct,
        observer: Observer,
        open_call: OpenCall,
        learn: Callable[[Lesson], None],
        judge: Callable[[int, Failure | None], None],
        running: set[Drive],
    ) -> None:
        """open_call: makes a leg's call. learn: stores a lesson. judge: is told how each leg's call ended. running:
        holds the drive while it runs.
        """
        self._exchange = exchange
        self._conduct = conduct
        self._observer = observer
        self._open_call = open_call
        self._learn = learn
        self._judge = judge
        self._running = running
        self._inbox = Inbox()
        self._calls = asyncio.TaskGroup()
        self._legs: dict[int, asyncio.Task[None]] = {}
        self._unopened: dict[int, OpenLeg] = {}  # by leg, in the order of opening
        self._opening = False  # whether the loop's next iteration opens more of them
        self._timers: dict[Timer, asyncio.TimerHandle] = {}  # a timer is set again only after it has fired
        self._output: list[bytes] = []  # still to be written
        self._head_waits = False  # for the first of that output
        self._respond: Respond | None = None  # still to be sent
        self.fell_back: FallBack | None = None
        self._finished = False

    @property
    def exchange(self) -> Exchange:
        """The exchange of the request."""
        return self._exchange

    async def run(self) -> None:
        """Drive the request to its end. Raises ClientLeft, and CancelledError if the client's connection is lost."""
        self._running.add(self)
        try:
            async with self._calls:
                left = await self._until_over()
        finally:
            self._running.discard(self)
            self._observer.ended()
        if left is not None:
            raise left

    async def _until_over(self) -> ClientLeft | None:
        """Execute commands until the last one, and end what is left of the legs.

        Returns ClientLeft instead of raising it, because the TaskGroup would wrap it in an ExceptionGroup.
        """
        try:
            sending = None if self._carry_out(self._conduct.start()) else self._deliver()
            while True:
                if sending is not None:
                    await sending
                if self._finished:
                    return None
                if events := await self._inbox.take(self._deal):
                    self._carry_out(self._conduct.receive(events))
                sending = self._deliver()
        except ClientLeft as left:
            self._stop()
            return left
        except asyncio.CancelledError:
            self._stop()
            raise
        finally:
            self._unopened.clear()
            for timer in self._timers.values():
                timer.cancel()
            for task in self._legs.values():
                task.cancel()

    def end(self, error: ApiError) -> bool:
        """Stop the request with an error: the drain limit is reached. False if another upstream is to be asked."""
        self._inbox.put_now((Stopped(error),))
        return self.fell_back is None

    async def fail(self, fell_back: FallBack) -> None:
        """Tell the client the failure, as there is no other upstream to ask. Raises ClientLeft."""
        self.fell_back = None
        self._carry_out(fell_back.instead)
        if (sending := self._deliver()) is not None:
            await sending

    def _deal(self, events: Sequence[Event]) -> bool:
        """Handle events as soon as they come; False if `run` has to go on, to send the end, for example."""
        return self._carry_out(self._conduct.receive(events))

    def _stop(self) -> None:
        """Nobody reads the answer any more. What its legs have cost until now is counted all the same."""
        self._carry_out(self._conduct.receive((*self._inbox.take_all(), Stopped())))

    def _carry_out(self, commands: Sequence[Command]) -> bool:
        """Execute commands, with one write for all output; False if there is output that may have to wait.

        Raises ClientLeft.
        """
        for command in commands:
            if type(command) is Emit:  # nearly all of a stream's
                self._output.append(command.data)
            else:
                HANDLERS[type(command)](self, command)
        if self._unopened and not self._opening:
            self._open(time.monotonic())
        if self._finished or self._respond is not None:
            return False
        if self._output:
            if not self._exchange.write_now(_joined(self._output)):
                return False
            self._output = []
        elif self._head_waits:
            self._exchange.flush_head()
        self._head_waits = False
        return True

    def _deliver(self) -> Awaitable[None] | None:
        """Return what sends output for which the client may have to be waited for, and the end; None for nothing."""
        exchange, respond = self._exchange, self._respond
        if respond is not None:
            exchange.shows(respond.way, respond.headers)
            return exchange.respond(respond.status, respond.body)
        output, self._output = _joined(self._output), []
        if self.fell_back is not None:
            return None
        if self._finished:
            return exchange.finish(output)
        return exchange.write(output) if output else None

    # ---- commands that are executed at once

    def _open_leg(self, command: OpenLeg) -> None:
        self._legs.pop(command.leg.number, None)  # the leg's previous call, which reports nothing more
        self._unopened[command.leg.number] = command

    def _cancel_leg(self, command: CancelLeg) -> None:
        self._unopened.pop(command.leg, None)
        if (task := self._legs.pop(command.leg, None)) is not None:
            task.cancel()

    def _set_timer(self, command: SetTimer) -> None:
        if isfinite(command.seconds):
            loop = asyncio.get_running_loop()
            fired = (TimerFired(command.timer),)
            self._timers[command.timer] = loop.call_later(command.seconds, self._inbox.put_now, fired)

    def _begin(self, command: Begin) -> None:
        self._exchange.shows(command.way)
        self._exchange.begin(200, STREAM_HEADERS)
        self._head_waits = True

    def _send_answer(self, command: Respond) -> None:
        self._respond = command

    def _fall_back(self, command: FallBack) -> None:
        self.fell_back = command

    def _teach(self, command: Learn) -> None:
        self._learn(command.lesson)

    def _call_ended(self, command: CallEnded) -> None:
        self._observer.call_ended(command.leg, command.failure)
        self._judge(command.leg, command.failure)

    def _finish(self, command: Finish) -> None:
        self._finished = True
        if self.fell_back is None:  # else the next upstream decides
            record = self._exchange.record
            record.outcome, record.end_status = command.outcome, command.status

    # ---- calls

    def _open(self, since: float) -> None:
        """Open the next legs now, and the others in the next iterations of the event loop.

        So the output of the first legs, and other requests, need not wait until the last of many calls is sent. If the
        loop is busy, its iterations are far apart, and each opens more legs: legs that begin together produce their
        chunks together, and these leave in one write. since: when this iteration or the previous one began.
        """
        now = time.monotonic()
        for number in [*islice(self._unopened, 1 if now - since < BUSY_TURN else OPENED_WHEN_BUSY)]:
            self._legs[number] = self._calls.create_task(self._run_leg(self._unopened.pop(number)))
        self._opening = bool(self._unopened)  # empty if they have been cancelled, or the request is over
        if self._opening:
            asyncio.get_running_loop().call_soon(self._open, now)

    async def _run_leg(self, command: OpenLeg) -> None:
        number = command.leg.number
        self._exchange.record.attempts += 1
        self._observer.leg_opened(command.leg, command.attempt)
        task = self._legs[number]

        def take(batch: list[Event]) -> asyncio.Future[None] | None:
            if self._legs.get(number) is not task:
                return None  # cancelled in this iteration of the loop
            self._observer.batch(number, batch)
            return self._inbox.put(batch)

        try:
            await self._open_call(command, take)
        except Exception:
            self._unopened.clear()  # the exception ends the TaskGroup, which accepts no new tasks
            raise
        finally:
            self._observer.leg_closed()


HANDLERS: Mapping[type[Command], Callable[[Drive, Any], None]] = {
    OpenLeg: Drive._open_leg,
    CancelLeg: Drive._cancel_leg,
    SetTimer: Drive._set_timer,
    Begin: Drive._begin,
    Respond: Drive._send_answer,
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
"""The handler of each command except Emit: `_carry_out` writes the output of all together."""


def _joined(output: list[bytes]) -> bytes:
    return output[0] if len(output) == 1 else b"".join(output)
