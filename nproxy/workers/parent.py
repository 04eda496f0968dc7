"""The parent of several workers: the state that it keeps for all of them, and what it reports of them as a whole."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import assert_never

from nproxy.concurrency.tasks import first_wanted
from nproxy.config import Config, Reading
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Answer, Returned, RoomAgain, message_of, to_bytes
from nproxy.gateway.admission.server import AdmissionServer, owner
from nproxy.gateway.engine_metrics import EngineMetrics
from nproxy.gateway.reload import History
from nproxy.telemetry import logs
from nproxy.telemetry.metrics import ParentMetrics
from nproxy.telemetry.sums import Report, add_up
from nproxy.upstreams.capabilities import LESSON_SECONDS, MOST_LESSONS
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.upstreams.registrar import Registrar
from nproxy.upstreams.registry import Snapshot
from nproxy.upstreams.upstreams import Upstreams
from nproxy.upstreams.via import Pseudonym
from nproxy.workers.channel import ChannelClosed
from nproxy.workers.messages import (
    PROTOCOL,
    Admission,
    Beat,
    Checked,
    Crowding,
    Drain,
    Json,
    Leave,
    LegsOfLeaving,
    Members,
    Message,
    Query,
    Ready,
    Reconfigure,
    Result,
    Start,
    Taught,
    said,
)
from nproxy.workers.process import Worker
from nproxy.workers.reports import pack
from nproxy.workers.status import together
from nproxy.workers.supervisor import Supervisor

ASK_SECONDS = 2.0
"""How long a worker may take to report its status."""

log = logging.getLogger("nproxy.workers")


class Parent:
    """The gateway as a whole, for the admin port and for the workers. Made inside the event loop; `close` once.

    reading: the current settings. history: since when they are served, and the last reload. registrar: registered
    servers. supervisor: the workers. to_restart: set when all workers are to be replaced.
    """

    def __init__(
        self,
        reading: Reading,
        listener: socket.socket,
        *,
        log_level: str,
        engine_socket: Path | None,
        metrics: ParentMetrics,
    ) -> None:
        self.reading = reading
        self.registrar = Registrar(self._publish)
        self.history = History(metrics)
        self.to_restart = asyncio.Event()
        self.supervisor = Supervisor(
            listener,
            self.config.listen.workers,
            start=self._start,
            hear=self._hear,
            restarted=metrics.worker_restarts.inc,
            lost=self._lost,
        )
        self._log_level = log_level
        self._engine_socket = engine_socket
        self._metrics = metrics
        self._server = AdmissionServer(Bounds.of(self.config), self._deliver)
        self._members: Snapshot | None = None
        self._lessons: deque[tuple[float, Taught]] = deque(maxlen=MOST_LESSONS)
        self._leaving: dict[Worker, LegsOfLeaving] = {}
        self._pseudonym = Pseudonym()
        self._engine = Upstreams(self.config.model_copy(update={"upstreams": ()}), engine_socket, self._pseudonym)
        self._engine_metrics = [EngineMetrics(engine, metrics.engine_up) for engine in self._engine.all]

    @property
    def config(self) -> Config:
        """The settings in use."""
        return self.reading.checked()

    async def close(self) -> None:
        """Close the ledger and the connections to the engine."""
        self._server.close()
        await self._engine.close()

    # ---- what all workers have in common

    def _start(self, worker: Worker) -> Start:
        now = time.monotonic()
        return Start(
            protocol=PROTOCOL,
            index=worker.index,
            workers=self.config.listen.workers,
            name=worker.name,
            pseudonym=self._pseudonym.name,
            settings=self.reading.message(),
            log_level=self._log_level,
            engine_socket=None if self._engine_socket is None else str(self._engine_socket),
            members=self._members,
            lessons=tuple(lesson for since, lesson in self._lessons if now - since < LESSON_SECONDS),
            predecessors=tuple(legs for leaving, legs in self._leaving.items() if leaving.index == worker.index),
        )

    def _lost(self, worker: Worker) -> None:
        self._server.lost(worker.name)
        if self._leaving.pop(worker, None) is not None:
            self._tell_slot(worker, LegsOfLeaving(worker.name, {}))

    def _tell_slot(self, leaving: Worker, legs: LegsOfLeaving) -> None:
        for worker in self.supervisor.living:
            if worker.index == leaving.index and worker is not leaving:
                worker.send(legs)

    def serve(self, reading: Reading) -> None:
        """Make all workers use these settings."""
        self.reading = reading
        self._lessons.clear()  # each worker knows which lessons still hold
        logs.reformat(self.config.telemetry.log_format)
        self._server.reconfigure(Bounds.of(self.config))
        self.supervisor.tell(Reconfigure(reading.message()))

    def _publish(self, snapshot: Snapshot) -> None:
        self._members = snapshot
        self.supervisor.tell(Members(snapshot))

    def _deliver(self, answer: Answer) -> None:
        message = Admission(to_bytes(answer))
        if isinstance(answer, RoomAgain | Returned):
            self.supervisor.tell(message)
        elif (worker := self.supervisor.named(owner(answer.ticket))) is not None:
            worker.send(message)

    def _hear(self, worker: Worker, message: Message) -> None:
        match message:
            case Admission():
                self._server.send(said(message, message_of))
            case Taught():
                self._lessons.append((time.monotonic(), message))
                self.supervisor.tell(message, but=worker)
            case Crowding(news=PeerNews(what="room", process=process)):
                if (waiting := self.supervisor.named(process)) is not None:
                    waiting.send(message)
            case Checked() | Crowding():
                self.supervisor.tell(message, but=worker)
            case LegsOfLeaving():
                self._leaving[worker] = message
                self._tell_slot(worker, message)
            case Leave():
                self.supervisor.beside(self.supervisor.replace(worker))
            case Query():
                self.supervisor.beside(self._answer(worker, message))
            case Start() | Reconfigure() | Members() | Drain() | Ready() | Beat() | Result():
                log.error("unexpected message for the parent", extra={"fields": {"kind": message.kind}})
            case _:
                assert_never(message)

    async def _answer(self, worker: Worker, query: Query) -> None:
        answer: Json
        match query.what:
            case "metrics":
                answer = await pack(self.report())
            case "status":
                answer = await self.status()
            case "ready":
                answer = await self.why_unready()
            case _:
                assert_never(query.what)
        worker.send(Result(query.number, answer))

    # ---- the workers as a whole

    async def report(self) -> Report:
        """The metrics of all workers added up, those of the parent, and those of the engine."""
        engine = (metrics.report() for metrics in self._engine_metrics)
        workers, *engines = await asyncio.gather(self.supervisor.report(), *engine)
        for state in ("starting", "serving", "leaving"):
            self._metrics.workers(state).set(sum(worker.state == state for worker in self.supervisor.living))
        return {**workers, **self._metrics.report(), **add_up(engines)}

    async def status(self) -> Mapping[str, object]:
        """The status of all workers combined, and of each worker."""
        workers = list(self.supervisor.living)
        documents = await asyncio.gather(*(_ask_status(worker) for worker in workers))
        now = asyncio.get_running_loop().time()
        return {
            **together([document for document in documents if document is not None]),
            "draining": self.supervisor.ending,
            "settings": self.history.status(),
            "workers": [
                {
                    "slot": worker.index,
                    "pid": worker.pid,
                    "state": worker.state,
                    "version": worker.version,
                    "seconds": round(now - worker.began, 3),
                    "inflight": None if document is None else document["inflight"],
                }
                for worker, document in zip(workers, documents, strict=True)
            ],
        }

    async def why_unready(self) -> str | None:
        """Why no worker should get requests; None if at least one should."""
        if self.supervisor.ending:
            return "The gateway is shutting down."
        workers = self.supervisor.serving
        if not workers:
            return "No worker is ready."
        return await first_wanted([partial(_ask_ready, worker) for worker in workers], lambda reason: reason is None)

    def restart(self) -> None:
        """Have all workers replaced, one after the other."""
        self.to_restart.set()


async def _ask_status(worker: Worker) -> Mapping[str, Json] | None:
    with suppress(ChannelClosed, TimeoutError):
        document: Mapping[str, Json] = await worker.ask("status", ASK_SECONDS)
        return document
    return None


async def _ask_ready(worker: Worker) -> str | None:
    try:
        reason: str | None = await worker.ask("ready", ASK_SECONDS)
    except (ChannelClosed, TimeoutError):
        return "A worker does not answer."
    return reason
