"""The workers of one gateway: started, replaced when they die, and one after the other when that is asked for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nproxy.telemetry.sums import Report, Totals
from nproxy.workers.backoff import Backoff
from nproxy.workers.channel import ChannelClosed
from nproxy.workers.messages import Message, Ready, Start
from nproxy.workers.process import Worker

START_ATTEMPTS = 3
"""A slot whose first workers die so often before they are ready makes the parent give up."""
HANDOVER_SECONDS = 600.0
"""How long a worker that was replaced may go on with its streams."""
REPORT_SECONDS = 2.0
"""How long a worker may take to say what it has counted; its last word stands for it then."""

log = logging.getLogger("nproxy.workers")


class WorkersFailed(Exception):
    """No gateway came about; the message is for the user."""


@dataclass(slots=True, eq=False)
class _Slot:
    """worker: the last one that was given the slot. replacing: held while another is made ready for it.

    failures: how many in a row ended before they were ready.
    """

    index: int
    worker: Worker | None = None
    replacing: asyncio.Lock = field(default_factory=asyncio.Lock)
    backoff: Backoff = field(default_factory=Backoff)
    failures: int = 0


class Supervisor:
    """So many workers on one listening socket.

    start: the first message to a worker, with what holds by now. hear: called with what workers say. restarted: called
    whenever a worker has died and another is started. lost: called for each worker that is gone. started: every slot
    has had a worker that accepted connections. living: all that are not gone, those that leave included.
    """

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        *,
        start: Callable[[Worker], Start],
        hear: Callable[[Worker, Message], None],
        restarted: Callable[[], None],
        lost: Callable[[Worker], None] = lambda _: None,
    ) -> None:
        self._listener = listener
        self._start = start
        self._hear = hear
        self._restarted = restarted
        self._lost = lost
        self._numbers = itertools.count()
        self._slots = [_Slot(index) for index in range(count)]
        self._totals = Totals()
        self._ending = asyncio.Event()
        self._were_ready: set[int] = set()
        self.started = asyncio.Event()
        self.living: list[Worker] = []

    @property
    def ending(self) -> bool:
        """Whether all were told to end."""
        return self._ending.is_set()

    @property
    def serving(self) -> list[Worker]:
        """Those that accept connections."""
        return [worker for worker in self.living if worker.state == "serving"]

    def named(self, name: str) -> Worker | None:
        """The living worker of this name."""
        return next((worker for worker in self.living if worker.name == name), None)

    async def run(self) -> None:
        """Keep the workers until `drain`, and until all have ended then. Raises WorkersFailed; leaves no process."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for slot in self._slots:
                    slot.worker = self._launch(slot)
        except BaseExceptionGroup as failures:
            failed = failures.subgroup(WorkersFailed)
            if failed is None:
                raise
            raise failed.exceptions[0] from None

    def drain(self, seconds: float) -> None:
        """Let all workers end what they have in flight, for so many seconds at most; again for another limit."""
        self._ending.set()
        for worker in self.living:
            worker.drain("end", seconds)

    def tell(self, message: Message, *, but: Worker | None = None) -> None:
        """Send a message to all workers, or to all others."""
        for worker in self.living:
            if worker is not but:
                worker.send(message)

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Do this while workers are kept."""
        self._tasks.create_task(work)

    async def roll(self) -> bool:
        """Replace all workers, one after the other: none is told to leave before another is ready in its slot.

        Gives whether all were replaced; after one that does not become ready, the rest stay as they are.
        """
        for slot in self._slots:
            async with slot.replacing:
                if not await self._replace(slot):
                    return False
        log.info("all workers are replaced")
        return True

    async def replace(self, worker: Worker) -> None:
        """Replace one worker, as `roll` does all; nothing where another one has its slot by now."""
        slot = self._slots[worker.index]
        async with slot.replacing:
            if slot.worker is worker and await self._replace(slot):
                log.info("a worker is replaced", extra={"fields": {"pid": worker.pid}})

    async def _replace(self, slot: _Slot) -> bool:
        """Whether another worker has the slot now; the one before it ends what it has in flight."""
        if self._ending.is_set():
            return False
        young = self._launch(slot)
        await _first(young.ready.wait(), young.ended.wait(), self._ending.wait())
        if self._ending.is_set():
            return False
        if young.ended.is_set():
            log.error("a new worker %s before it was ready; the others stay", young.how)
            return False
        old, slot.worker = slot.worker, young
        if old is not None:
            old.drain("handover", HANDOVER_SECONDS)
        return True

    async def report(self) -> Report:
        """What all workers have counted, those that are gone included."""

        async def refresh(worker: Worker) -> None:
            with suppress(ChannelClosed, TimeoutError):
                await worker.ask("metrics", REPORT_SECONDS)

        await asyncio.gather(*map(refresh, self.living))
        return self._totals.over([worker.report() for worker in self.living])

    def _launch(self, slot: _Slot) -> Worker:
        worker = Worker(slot.index, f"w{next(self._numbers)}", self._heard)
        self.living.append(worker)
        self._tasks.create_task(self._live(slot, worker))
        return worker

    async def _live(self, slot: _Slot, worker: Worker) -> None:
        try:
            await worker.live(self._listener, partial(self._start, worker))
        finally:
            self.living.remove(worker)
            self._totals.retire(worker.report())
            self._lost(worker)
        if slot.worker is worker and not self._ending.is_set():
            await self._start_another(slot, worker)

    async def _start_another(self, slot: _Slot, dead: Worker) -> None:
        """Have a worker in the slot again, unless a rolling restart has brought one meanwhile."""
        slot.failures = 0 if dead.ready.is_set() else slot.failures + 1
        if slot.failures >= START_ATTEMPTS and not self.started.is_set():
            raise WorkersFailed(f"no worker becomes ready: {slot.failures} in a row; the last one {dead.how}")
        pause = slot.backoff.after(asyncio.get_running_loop().time() - dead.began)
        log.error("a worker %s; starting another in %.1f s", dead.how, pause)
        self._restarted()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._ending.wait()
        if slot.worker is dead and not self._ending.is_set():
            slot.worker = self._launch(slot)

    def _heard(self, worker: Worker, message: Message) -> None:
        if isinstance(message, Ready):
            self._were_ready.add(worker.index)
            if len(self._were_ready) == len(self._slots):
                self.started.set()
        else:
            self._hear(worker, message)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these."""
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(one) for one in waits]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
