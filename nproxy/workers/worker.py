"""The life of a worker: told by the parent what to serve, it serves until it is told to end or the parent is gone."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, assert_never

from nproxy import __version__
from nproxy.config import ConfigError
from nproxy.config.loading import from_message, keys_from_message
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Ask, answer_of, to_data
from nproxy.gateway.admission.messages import Message as Sent
from nproxy.gateway.admission.refusals import UNANSWERED
from nproxy.gateway.admission.server import Deliver, Transport
from nproxy.gateway.app import App
from nproxy.gateway.introspect import own_report, status_document, why_unready
from nproxy.gateway.serve import Running, drain, hand_over, look_for_upstreams, running
from nproxy.openai.errors import not_ready
from nproxy.telemetry import logs
from nproxy.telemetry.sums import Report, as_data, from_data
from nproxy.upstreams.health_checker import CheckResult
from nproxy.upstreams.peer_workers import PeerNews
from nproxy.upstreams.via import Pseudonym
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
)
from nproxy.workers.pace import Pace
from nproxy.workers.shares import share

BEAT_SECONDS = 2.0
"""Between two signs of life; what a killed worker has counted since the last one is lost."""

ASK_SECONDS = 5.0
"""How long the parent may take to ask everybody."""

log = logging.getLogger("nproxy.workers")


class NotForUs(Exception):
    """The parent speaks another version of the language."""


async def work(listener: socket.socket, line: socket.socket) -> None:
    """Serve on `listener`, a listening socket, what the parent at the other end of `line` says. Raises NotForUs."""
    channel = await connect(line)
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
    worker = _Worker(channel, start)
    async with running(
        ours,
        keys,
        engine_socket=engine_socket,
        sock=listener,
        pseudonym=Pseudonym(start.pseudonym),
        prepare=worker.prepare,
    ) as gateway:
        await worker.serve(gateway, messages)
    channel.send(Beat(as_data(gateway.app.metrics.report())))  # the last requests are counted too
    channel.close()
    await channel.closed()


class _Worker:
    """The gateway of this process, as the parent's messages move it. `prepare` first, then `serve`."""

    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel = channel
        self._start = start
        self._draining: asyncio.Task[None] | None = None
        self._asked_to_leave = False
        self._over = asyncio.Event()
        self._pace = Pace()
        self._reporting = asyncio.Lock()

    def prepare(self, app: App) -> None:
        """Join the app to the parent, with what the parent knows already."""
        self._app = app
        self._ledger = _LedgerLine(self._channel, self._start.name)
        app.admission.connect(self._ledger.connect)
        app.whole = _ParentLine(self._channel)
        app.tell_lesson = lambda upstream, model, lesson: self._channel.send(taught(upstream, model, lesson))
        app.upstreams.tell_check = lambda look: self._channel.send(Checked(**asdict(look)))
        app.upstreams.share_room(self._start.name, lambda news: self._channel.send(Crowding(**asdict(news))))
        for lesson in self._start.lessons:
            self._learn(lesson)
        if self._start.members is not None:
            app.upstreams.take_members(self._start.members)

    async def serve(self, gateway: Running, messages: AsyncIterator[Message]) -> None:
        """Return when a drain has come to its end, or at once when the parent is gone."""
        self._gateway, loop = gateway, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._tasks:
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
        self._drain(Drain("handover", 0.0))  # the port is free for another parent; streams learn why they end

    def _hear(self, message: Message) -> None:
        match message:
            case Drain():
                self._drain(message)
            case Reconfigure(settings=settings):
                self._reload(settings)
            case Members(members=members):
                self._app.upstreams.take_members(members)
            case Taught():
                self._learn(message)
            case Checked():
                self._app.upstreams.take_check(
                    CheckResult(message.upstream, message.replica, message.status, message.seconds)
                )
            case Crowding():
                self._app.upstreams.take_news(_news(message))
            case Query():
                self._tasks.create_task(self._answer(message))
            case Admission(message=data):
                self._ledger.hear(data)
            case Start() | Ready() | Leave() | Beat() | Result():
                log.error("unexpected message for a worker", extra={"fields": {"kind": message.kind}})
            case _:
                assert_never(message)

    def _leave(self) -> None:
        """At SIGTERM, have the parent put another worker in the place of this one; at the second, end without it."""
        if self._asked_to_leave:
            self._drain(Drain("end", self._app.config.listen.drain_seconds))
        else:
            self._asked_to_leave = True
            self._channel.send(Leave())

    def _drain(self, order: Drain) -> None:
        """Begin to end; a second order takes the place of the first."""
        if self._draining is not None:
            self._draining.cancel()
        self._draining = self._tasks.create_task(self._end(order))

    async def _end(self, order: Drain) -> None:
        if order.how == "handover":
            await hand_over(self._gateway, order.seconds)
        else:
            await drain(self._app, order.seconds)
        self._over.set()

    def _reload(self, settings: dict[str, Any]) -> None:
        try:
            config = share(from_message(settings), self._start.index, self._start.workers)
            self._app.reconfigure(config, keys_from_message(settings))
        except ConfigError as error:
            for problem in error.problems:
                log.error("settings were not reloaded: %s", problem)  # noqa: TRY400 - what is wrong is said in full

    def _learn(self, message: Taught) -> None:
        upstream = self._app.upstreams.by_name.get(message.upstream)
        if upstream is not None:
            with suppress(NotAMessage):  # a newer worker may know more kinds of lessons
                upstream.capabilities.learn(message.model, lesson_of(message))

    async def _beat(self) -> None:
        while True:
            if not self._channel.unread:  # a parent that stands still is not told the same again and again
                if self._pace.due(time.monotonic()):
                    await self._report()
                else:
                    self._channel.send(Beat(None))
                self._app.upstreams.remind()
            await asyncio.sleep(BEAT_SECONDS)

    async def _report(self) -> None:
        """One after the other: the parent takes the last that comes for the newest."""
        async with self._reporting:
            began = time.monotonic()
            report = await own_report(self._app)
            self._channel.send(Beat(await asyncio.to_thread(as_data, report)))
            self._pace.took(began, time.monotonic())

    async def _answer(self, query: Query) -> None:
        answer: Json = None
        match query.what:
            case "metrics":
                # the answer is the beat before it: reports come in the order in which they were made
                await self._report()
            case "status":
                answer = status_document(self._app)
            case "ready":
                answer = await why_unready(self._app)
            case _:
                assert_never(query.what)
        self._channel.send(Result(query.number, answer))


def _news(message: Crowding) -> PeerNews:
    told = asdict(message)
    del told["kind"]
    return PeerNews(**told)


class _LedgerLine:
    """The way to the ledger in the parent, which alone knows of its bounds."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self.prefix = prefix
        self._channel = channel
        self._deliver: Deliver | None = None

    def connect(self, deliver: Deliver) -> Transport:
        self._deliver = deliver
        return self

    def at_once(self, ask: Ask) -> bool:
        """Never: only the parent knows what is taken."""
        return False

    def send(self, message: Sent) -> None:
        self._channel.send(Admission(to_data(message)))

    def hear(self, data: Json) -> None:
        if self._deliver is not None:
            self._deliver(answer_of(data))

    def reconfigure(self, bounds: Bounds) -> None:
        pass

    def close(self) -> None:
        pass


class _ParentLine:
    """Speaks for all workers, by asking the parent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def report(self) -> Report:
        return from_data(await self._ask("metrics"))

    async def status(self) -> Mapping[str, object]:
        told: Mapping[str, object] = await self._ask("status")
        return told

    async def _ask(self, what: Question) -> Json:
        try:
            return await self._channel.ask(what, ASK_SECONDS)
        except (ChannelClosed, TimeoutError):
            raise not_ready(UNANSWERED) from None
