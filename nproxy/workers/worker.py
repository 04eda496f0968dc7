"""The life of a worker: it serves what the parent tells it to, until it is told to end or the parent is gone."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, assert_never

from nproxy import __version__
from nproxy.concurrency.tasks import beside
from nproxy.config import ConfigError
from nproxy.config.loading import from_message, keys_from_message
from nproxy.gateway import huge_pages
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Ask, Level, answer_of, to_bytes
from nproxy.gateway.admission.messages import Leave as LeaveLedger
from nproxy.gateway.admission.messages import Message as Sent
from nproxy.gateway.admission.refusals import UNANSWERED
from nproxy.gateway.admission.server import Deliver, Transport
from nproxy.gateway.app import App
from nproxy.gateway.introspect import look, own_report, status_document, why_unready
from nproxy.gateway.serve import Running, drain, hand_over, look_for_upstreams, running, step_down
from nproxy.openai.errors import not_ready
from nproxy.telemetry import logs
from nproxy.telemetry.sums import Report, packed, unpacked
from nproxy.upstreams.via import Pseudonym
from nproxy.workers.certificate import certificate_in_memory
from nproxy.workers.channel import Channel, ChannelClosed, connect
from nproxy.workers.lessons import lesson_of, taught
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
    NotAMessage,
    Query,
    Question,
    Ready,
    Reconfigure,
    Result,
    Start,
    Taught,
    said,
)
from nproxy.workers.report_interval import ReportInterval
from nproxy.workers.reports import pack
from nproxy.workers.shares import share

BEAT_SECONDS = 2.0
"""Interval of the signs of life. What a killed worker has counted since its last report is lost."""

LEAVE_SECONDS = 30.0
"""A second SIGTERM so soon after the first ends the worker, whether or not another can take its place."""

LEGS_SECONDS = 0.25
"""How often a worker that hands over looks which calls it still has, for its successor."""

ASK_SECONDS = 6.0
"""How long the parent may take to answer for all workers. It waits two seconds for each of them, and whoever asks
meanwhile waits for the next question."""

log = logging.getLogger("nproxy.workers")


class NotForUs(Exception):
    """The parent uses another version of the protocol."""


async def work(listener: socket.socket, to_parent: socket.socket) -> None:
    """Serve on `listener`, a listening socket, as the parent at the other end of `to_parent` says. Raises NotForUs."""
    channel = await connect(to_parent)
    messages = channel.messages()
    start = await anext(messages, None)
    if start is None:
        return
    if not isinstance(start, Start) or start.protocol != PROTOCOL:
        raise NotForUs
    config = from_message(start.settings)
    logs.configure(start.log_level, config.telemetry.log_format)
    engine_socket = None if start.engine_socket is None else Path(start.engine_socket)
    ours, keys = share(config, start.index, start.workers), keys_from_message(start.settings)
    ledger = _LedgerTransport(channel, start.name)
    huge_pages.move(config.listen.huge_pages)
    async with AsyncExitStack() as stack:
        ours = stack.enter_context(certificate_in_memory(ours, start.settings))
        gateway = await stack.enter_async_context(
            running(
                ours,
                keys,
                engine_socket=engine_socket,
                sock=listener,
                pseudonym=Pseudonym(start.pseudonym),
                prepare=partial(_prepare, channel=channel, start=start, ledger=ledger),
            )
        )
        await _Worker(gateway, channel, start).serve(messages)
    look(gateway.app)
    channel.send(Beat(packed(gateway.app.metrics.report())))  # the last requests are counted too
    channel.close()
    await channel.closed()


def _prepare(app: App, channel: Channel, start: Start, ledger: _LedgerTransport) -> None:
    """Connect the app to the parent, and give it the lessons and members of the start message."""
    app.admission.connect(ledger.connect)
    app.all_processes = _AskedOfParent(channel)
    app.tell_lesson = lambda upstream, model, lesson: channel.send(taught(upstream, model, lesson))
    app.upstreams.tell_check = lambda check: channel.send(Checked(check))
    app.upstreams.share_room(start.name, lambda news: channel.send(Crowding(news)))
    for lesson in start.lessons:
        _learn(app, lesson)
    if start.members is not None:
        app.upstreams.take_members(start.members)
    for predecessor in start.predecessors:
        app.upstreams.take_legs_elsewhere(predecessor.worker, predecessor.legs)


def _learn(app: App, message: Taught) -> None:
    upstream = app.upstreams.by_name.get(message.upstream)
    if upstream is not None:
        with suppress(NotAMessage):  # a newer worker may know more kinds of lessons
            upstream.capabilities.learn(message.model, lesson_of(message))


class _Worker:
    """The gateway of this process, controlled by the parent's messages."""

    def __init__(self, gateway: Running, channel: Channel, start: Start) -> None:
        self._gateway = gateway
        self._app = gateway.app
        self._channel = channel
        self._start = start
        self._tasks = asyncio.TaskGroup()
        self._draining: asyncio.Task[None] | None = None
        self._leaves_at = -inf
        self._ends_at = inf
        self._over = asyncio.Event()
        self._interval = ReportInterval()
        self._reporting = asyncio.Lock()

    async def serve(self, messages: AsyncIterator[Message]) -> None:
        """Return when a drain has ended. If the parent is gone, a drain begins that does not wait for requests."""
        loop = asyncio.get_running_loop()
        async with self._tasks:
            beside = [self._tasks.create_task(self._listen(messages)), self._tasks.create_task(self._beat())]
            if self._start.index == 0:
                beside.append(self._tasks.create_task(look_for_upstreams(self._app)))
            loop.add_signal_handler(signal.SIGTERM, self._leave)
            self._channel.send(Ready(__version__))
            await self._over.wait()
            for task in (*beside, self._draining):
                if task is not None:
                    task.cancel()

    async def _listen(self, messages: AsyncIterator[Message]) -> None:
        async for message in messages:
            self._hear(message)
        log.warning("the parent process is gone")
        self._drain(Drain("handover", 0.0))  # frees the port for another parent; streams are told why they end

    def _hear(self, message: Message) -> None:
        match message:
            case Drain():
                self._drain(replace(message, seconds=min(message.seconds, self._seconds_left)))
            case Reconfigure(settings=settings):
                self._reload(settings)
            case Members(members=members):
                self._app.upstreams.take_members(members)
            case Taught():
                _learn(self._app, message)
            case Checked(check=check):
                self._app.upstreams.take_check(check)
            case Crowding(news=news):
                self._app.upstreams.take_news(news)
            case LegsOfLeaving():
                self._app.upstreams.take_legs_elsewhere(message.worker, message.legs)
            case Query():
                self._tasks.create_task(self._answer(message))
            case Start() | Ready() | Leave() | Beat() | Result() | Admission():
                log.error("unexpected message for a worker", extra={"fields": {"kind": message.kind}})
            case _:
                assert_never(message)

    def _leave(self) -> None:
        """At the first SIGTERM, ask the parent to replace this worker; at the second, drain without that."""
        now = time.monotonic()
        if now - self._leaves_at < LEAVE_SECONDS:
            seconds = self._app.config.listen.drain_seconds
            self._ends_at = min(self._ends_at, now + seconds)
            self._drain(Drain("end", self._seconds_left))
        else:
            self._leaves_at = now
            self._channel.send(Leave())

    @property
    def _seconds_left(self) -> float:
        """How long requests may take, by a second SIGTERM: orders of the parent that follow give no more time."""
        return max(0.0, self._ends_at - time.monotonic())

    def _drain(self, order: Drain) -> None:
        """Begin to end. A second order replaces the first."""
        if self._draining is not None:
            self._draining.cancel()
        self._draining = self._tasks.create_task(self._end(order))

    async def _end(self, order: Drain) -> None:
        if order.how == "handover":
            async with beside(self._tell_successor()):
                await hand_over(self._gateway, order.seconds)
        else:
            await drain(self._app, order.seconds)
            await step_down(self._gateway)
        self._over.set()

    async def _tell_successor(self) -> None:
        """Tell it which calls go on here, so that it makes no more than both may have together."""
        told: dict[str, dict[str, int]] | None = None
        while True:
            if (legs := self._app.upstreams.legs) != told:
                self._channel.send(LegsOfLeaving(self._start.name, legs))
                told = legs
            await asyncio.sleep(LEGS_SECONDS)

    def _reload(self, settings: dict[str, Any]) -> None:
        try:
            config = share(from_message(settings), self._start.index, self._start.workers)
            with certificate_in_memory(config, settings) as ours:
                self._app.reconfigure(ours, keys_from_message(settings))
            logs.reformat(config.telemetry.log_format)
        except ConfigError as error:
            for problem in error.problems:
                log.error("settings were not reloaded: %s", problem)  # noqa: TRY400 - what is wrong is said in full

    async def _beat(self) -> None:
        while True:
            if not self._channel.unread:  # do not pile up reports for a parent that does not read them
                if self._interval.due(time.monotonic()):
                    await self._report()
                else:
                    self._channel.send(Beat(None))
                self._app.upstreams.remind()
            await asyncio.sleep(BEAT_SECONDS)

    async def _report(self) -> None:
        """Send a report. They are sent one after the other, because the parent takes the last one to be the newest.

        While no thread can be started, only a sign of life is sent, and the last report stands.
        """
        async with self._reporting:
            began = time.monotonic()
            self._channel.send(Beat(await pack(own_report(self._app))))
            self._interval.took(began, time.monotonic())

    async def _answer(self, query: Query) -> None:
        answer: Json = None
        match query.what:
            case "metrics":
                # the beat before it is the answer: reports arrive in the order in which they were made
                await self._report()
            case "status":
                answer = status_document(self._app)
            case "ready":
                answer = await why_unready(self._app)
            case _:
                assert_never(query.what)
        self._channel.send(Result(query.number, answer))


class _LedgerTransport:
    """The connection to the ledger in the parent, the only process that knows the limits."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self.prefix = prefix
        self._channel = channel
        self._deliver: Deliver | None = None
        channel.admission = self._hear

    def connect(self, deliver: Deliver) -> Transport:
        self._deliver = deliver
        return self

    def at_once(self, ask: Ask) -> tuple[Level, ...] | None:
        """Never at once: only the parent knows what is in use."""
        return None

    def leave(self, ticket: str, tokens: int | None = None) -> None:
        self.send(LeaveLedger(ticket, tokens))

    def send(self, message: Sent) -> None:
        self._channel.send(Admission(to_bytes(message)))

    def _hear(self, message: Admission) -> None:
        if self._deliver is not None:
            self._deliver(said(message, answer_of))

    def reconfigure(self, bounds: Bounds) -> None:
        pass

    def close(self) -> None:
        pass


class _AskedOfParent:
    """Speaks for all workers, by asking the parent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def report(self) -> Report:
        packed = await self._ask("metrics")
        if not isinstance(packed, str):
            raise not_ready(UNANSWERED)
        return await asyncio.to_thread(unpacked, packed)

    async def status(self) -> Mapping[str, object]:
        document: Mapping[str, object] = await self._ask("status")
        return document

    async def _ask(self, what: Question) -> Json:
        try:
            return await self._channel.ask(what, ASK_SECONDS)
        except (ChannelClosed, TimeoutError):
            raise not_ready(UNANSWERED) from None
