"""A whole measurement: warm up, send, count, and stop if the user asks for it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nproxy.cli.bench.answer import Failure, Record
from nproxy.cli.bench.asking import Ask, Form
from nproxy.cli.bench.bounds import Bound
from nproxy.cli.bench.running import closed_loop, open_loop
from nproxy.cli.bench.schedule import Closed, Extent, Load, due_times
from nproxy.cli.bench.tally import Tally
from nproxy.concurrency.tasks import beside

Asking = Callable[[Ask, float | None], Awaitable[Record]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    load: Load
    extent: Extent
    warmup: int
    """How many requests to send before the measurement."""
    form: Form
    seed: int
    """The seed of the times at which an open loop's requests are due."""
    goodput: Sequence[Bound] = ()
    """The limits that a request must keep to count as good."""


class Measuring:
    """One measurement; a progress bar may read it while it runs. clock: returns seconds from an arbitrary moment."""

    def __init__(self, plan: Plan, ask: Asking, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._ask = ask
        self._clock = clock
        self.tally = Tally(goodput=plan.goodput)
        self.begun = 0
        self.started: float | None = None
        self._last_sent = 0.0
        self._ended = 0.0
        self._processor = 0.0

    async def warm_up(self) -> Failure | None:
        """Send requests that do not count, at most as many at once as later.

        Returns the first failure if none was answered, else None.
        """
        width = self._plan.load.concurrency if isinstance(self._plan.load, Closed) else 1
        records: list[Record] = []

        async def send(number: int, _: float) -> None:
            records.append(await self._ask(self._plan.form.ask(number), None))

        await closed_loop(width, Extent(self._plan.warmup, None), send, self._clock)
        failures = [record.failure for record in records if record.failure is not None]
        return failures[0] if failures and len(failures) == len(records) else None

    async def run(self) -> None:
        """Measure. If it is cancelled, the requests that have ended so far count."""
        plan = self._plan
        processor = time.process_time()
        self.started = self._last_sent = self._clock()
        try:
            if isinstance(plan.load, Closed):
                await closed_loop(plan.load.concurrency, plan.extent, self._send, self._clock)
            else:
                due = due_times(plan.load, plan.extent, random.Random(plan.seed))
                await open_loop(due, self._send, self._clock)
        finally:
            self._ended = self._clock()
            self._processor = time.process_time() - processor

    @property
    def wall_seconds(self) -> float:
        """Seconds from the first request until the last one had ended, or until the measurement was cancelled."""
        return 0.0 if self.started is None else self._ended - self.started

    @property
    def tail_seconds(self) -> float:
        """The part of the wall seconds after the last request was sent."""
        return self._ended - self._last_sent if self.wall_seconds else 0.0

    @property
    def cpu_share(self) -> float:
        """CPU seconds of this process per second."""
        return self._processor / self.wall_seconds if self.wall_seconds else 0.0

    async def _send(self, number: int, due: float) -> None:
        ask = self._plan.form.ask(self._plan.warmup + number)
        self.begun += 1
        self._last_sent = self._clock()
        self.tally.add(await self._ask(ask, due))


async def until_set(work: Awaitable[None], end: asyncio.Event) -> bool:
    """Do the work until it ends or the event is set; returns whether it was cut off. Exceptions are passed through."""

    async def cut(scope: asyncio.Timeout) -> None:
        await end.wait()
        scope.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as scope, beside(cut(scope)):
            await work
    except TimeoutError:
        if not scope.expired():
            raise
        return True
    return False
