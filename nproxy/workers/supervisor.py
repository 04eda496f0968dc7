"""Manages the workers of one gateway: starts them, restarts those that die, and replaces all of them on request."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial

from nproxy.concurrency.tasks import within
from nproxy.telemetry.sums import Report, Totals
from nproxy.workers.backoff import Backoff
from nproxy.workers.messages import Message, Ready, Start
from nproxy.workers.process import Worker

START_ATTEMPTS = 3
"""The parent gives up if, at the start, so many workers of a slot die in a row before they are ready."""
HANDOVER_SECONDS = 600.0
"""How long a worker that was replaced may continue its streams."""
REPORT_SECONDS = 2.0
"""How long a worker may take to report its metrics; after that, its last report is used."""

log = logging.getLogger("nproxy.workers")


class WorkersFailed(Exception):
    """The gateway could not be started. The message is for the user."""


@dataclass(slots=True, eq=False)
class _Slot:
    """The place of one worker."""

    index: int
    """Its number, from 0."""
    worker: Worker | None = None
    """The last worker that was given the slot."""
    replacing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while another worker is started to replace the current one."""
    backoff: Backoff = field(default_factory=Backoff)
    """The pauses before restarts."""
    failures: int = 0
    """How many workers in a row ended before they were ready."""


class Supervisor:
    """Keeps a number of workers on one listening socket.

    started: set when every slot has had a worker that accepts connections. living: all workers that are not gone, also
    those that are leaving.
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
        """count: the number of slots. start: returns the first message to a worker, with the current state. hear:
        called with the messages of workers. restarted: called when a worker has died and another is to be started.
        lost: called for each worker that is gone.
        """
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
        self._tasks = asyncio.TaskGroup()
        self.started = asyncio.Event()
        self.living: list[Worker] = []

    @property
    def ending(self) -> bool:
        """Whether all workers were told to end."""
        return self._ending.is_set()

    @property
    def serving(self) -> list[Worker]:
        """The workers that accept connections."""
        return [worker for worker in self.living if worker.state == "serving"]

    def named(self, name: str) -> Worker | None:
        """Return the living worker of this name; None if there is none."""
        return next((worker for worker in self.living if worker.name == name), None)

    async def run(self) -> None:
        """Run the workers until all have ended after `drain`. Raises WorkersFailed. Leaves no process behind."""
        try:
            async with self._tasks:
                for slot in self._slots:
                    slot.worker = self._launch(slot)
        except BaseExceptionGroup as failures:
            failed = failures.subgroup(WorkersFailed)
            if failed is None:
                raise
            raise failed.exceptions[0] from None

    def drain(self, seconds: float) -> None:
        """Tell all workers to drain for at most so many seconds, and then end. Call it again to change the limit."""
        self._ending.set()
        for worker in self.living:
            worker.drain("end", seconds)

    def tell(self, message: Message, *, but: Worker | None = None) -> None:
        """Send a message to all workers. but: except this one."""
        for worker in self.living:
            if worker is not but:
                worker.send(message)

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Run this as a task while `run` runs."""
        self._tasks.create_task(work)

    async def roll(self) -> bool:
        """Replace all workers, one after the other. None is told to leave before another one is ready in its slot.

        Returns whether all were replaced. If a new worker does not become ready, the remaining old ones stay.
        """
        for slot in self._slots:
            async with slot.replacing:
                if not await self._replace(slot):
                    return False
        log.info("all workers were replaced")
        return True

    async def replace(self, worker: Worker) -> None:
        """Replace one worker, as `roll` does. Nothing is done if another one has its slot already."""
        slot = self._slots[worker.index]
        async with slot.replacing:
            if slot.worker is worker and await self._replace(slot):
                log.info("a worker was replaced", extra={"fields": {"pid": worker.pid}})

    async def _replace(self, slot: _Slot) -> bool:
        """Start another worker for a slot, and drain the old one. Returns whether the new one has the slot."""
        if self._ending.is_set():
            return False
        young = self._launch(slot)
        await within(None, young.ready.wait(), young.ended.wait(), self._ending.wait())
        if self._ending.is_set():
            return False
        if young.ended.is_set():
            log.error("a new worker %s before it was ready; the other workers stay", young.how)
            return False
        old, slot.worker = slot.worker, young
        if old is not None:
            old.drain("handover", HANDOVER_SECONDS)
        return True

    async def report(self) -> Report:
        """Return the metrics of all workers, also of those that are gone."""
        await asyncio.gather(*(worker.refresh(REPORT_SECONDS) for worker in self.living))
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
        """Start a worker in the slot again after a pause, unless a rolling restart has put one there meanwhile.

        Raises WorkersFailed.
        """
        async with slot.replacing:  # another worker may be starting for the slot already
            if slot.worker is not dead or self._ending.is_set():
                return
        slot.failures = 0 if dead.ready.is_set() else slot.failures + 1
        if slot.failures >= START_ATTEMPTS and not self.started.is_set():
            raise WorkersFailed(f"no worker becomes ready: {slot.failures} in a row; the last one {dead.how}")
        pause = slot.backoff.after(asyncio.get_running_loop().time() - dead.began)
        pid = {"pid": dead.pid}  # the system's own log names a process that it killed by its number
        log.error("a worker %s; starting another in %.1f s", dead.how, pause, extra={"fields": pid})
        self._restarted()
        await within(pause, self._ending.wait())
        if slot.worker is dead and not self._ending.is_set():
            slot.worker = self._launch(slot)

    def _heard(self, worker: Worker, message: Message) -> None:
        if isinstance(message, Ready):
            self._were_ready.add(worker.index)
            if len(self._were_ready) == len(self._slots):
                self.started.set()
        else:
            self._hear(worker, message)
