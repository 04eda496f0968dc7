"""Runs the gateway, from its start to its drain. The entry point for the command line and for tests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nproxy.concurrency.tasks import beside, within
from nproxy.config import Config, Key, Reading
from nproxy.gateway import huge_pages
from nproxy.gateway.admin.gateway import SingleProcess
from nproxy.gateway.admin.port import admin_port
from nproxy.gateway.app import App
from nproxy.gateway.listening import base_url, served
from nproxy.gateway.reload import History, Reload, Reloader
from nproxy.gateway.routes import dispatch
from nproxy.gateway.server import HEADER_SECONDS, HttpServer
from nproxy.gateway.signals import ending_signals, reloads_at_hangup
from nproxy.openai.errors import ApiError
from nproxy.telemetry import logs
from nproxy.telemetry.common_metrics import CommonMetrics
from nproxy.telemetry.loop_lag import LagProbe
from nproxy.upstreams.registrar import Registrar
from nproxy.upstreams.via import Pseudonym

AFTER_DRAIN_SECONDS = 1.0
"""How long requests may take to send an error and end after the drain limit has passed."""
LAST_SECONDS = 0.25
"""How long a connection that was accepted already may take to send its request, if others still accept connections."""

log = logging.getLogger("nproxy.gateway")


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that accepts connections. server: its listener. url: its base URL (`http://127.0.0.1:8000`)."""

    app: App
    http: HttpServer
    server: asyncio.Server
    url: str


async def serve(
    reading: Reading,
    *,
    engine_socket: Path | None = None,
    sock: socket.socket | None = None,
    admin_sock: socket.socket | None = None,
    ready: Callable[[str, CommonMetrics], None] | None = None,
    stop: asyncio.Event | None = None,
    reloaded: Callable[[Reload], None] = lambda _: None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then drain for `listen.drain_seconds` or until a second signal.

    reading: the settings; they are read again at SIGHUP and when their files change. reloaded: called at each reload.
    engine_socket: the Unix socket of the built-in engine, which becomes the first upstream (it may not answer yet).
    sock, admin_sock: bound sockets to listen on instead of the addresses in `listen` and `admin`.
    ready: called once with the base URL (`http://127.0.0.1:8000`) and the metrics as soon as connections are accepted.
    Raises OSError if the address cannot be bound.
    """
    stop, hurry = stop or asyncio.Event(), asyncio.Event()
    config = reading.checked()
    huge_pages.move(config.listen.huge_pages)
    with ending_signals(stop, hurry):
        async with (
            running(config, reading.keys, engine_socket=engine_socket, sock=sock) as gateway,
            administered(gateway.app, admin_sock),
            follow(reading, partial(use, gateway.app), gateway.app.history, reloaded),
            beside(look_for_upstreams(gateway.app)),
        ):
            if ready is not None:
                ready(gateway.url, gateway.app.metrics)
            await stop.wait()
            await drain(gateway.app, gateway.app.config.listen.drain_seconds, hurry)


@asynccontextmanager
async def administered(app: App, sock: socket.socket | None) -> AsyncIterator[None]:
    """Serve the admin port of a gateway of one process while the block runs, if one is configured."""
    if app.config.admin is None:
        yield
        return
    async with admin_port(SingleProcess(app), Registrar(app.upstreams.take_members), sock) as url:
        log.info("the admin port is listening", extra={"fields": {"url": url}})
        yield


@asynccontextmanager
async def follow(
    reading: Reading, apply: Callable[[Reading], None], history: History, reloaded: Callable[[Reload], None]
) -> AsyncIterator[None]:
    """Reload the settings at SIGHUP, and when the files of `reading` change, while the block runs.

    reading: the settings in use now. apply: see Reloader. history: gets every reload. reloaded: called after it.
    """

    def tell(reload: Reload) -> None:
        history.add(reload)
        reloaded(reload)

    reloader = Reloader(reading, apply, tell)
    with reloads_at_hangup(reloader):
        async with beside(reloader.run()):
            yield


def use(app: App, reading: Reading) -> None:
    """Have the gateway of one process use other settings. Raises ConfigError; then nothing has changed."""
    config = reading.checked()
    app.reconfigure(config, reading.keys)
    logs.reformat(config.telemetry.log_format)


@asynccontextmanager
async def running(
    config: Config,
    keys: Sequence[Key] = (),
    *,
    engine_socket: Path | None = None,
    sock: socket.socket | None = None,
    pseudonym: Pseudonym | None = None,
    header_seconds: float = HEADER_SECONDS,
    prepare: Callable[[App], None] = lambda _: None,
) -> AsyncIterator[Running]:
    """Accept connections while the block runs. After it, requests that are still in flight are cancelled.

    keys: those of the keys file. pseudonym: the gateway's name in `Via`, if it has other processes too. prepare: called
    with the app before it gets any request.
    """
    app = App(config, keys, engine_socket, pseudonym)
    try:
        prepare(app)
        await app.upstreams.begin()
        turned_away = app.metrics.refused("connections").inc
        http = HttpServer(partial(dispatch, app), header_seconds=header_seconds, turned_away=turned_away)
        accept = None if app.certificate is None else app.certificate.over(http, header_seconds)
        async with served(http, config.listen, sock, end_seconds=AFTER_DRAIN_SECONDS, accept=accept) as server:
            url = base_url(server.sockets[0], tls=app.certificate is not None)
            async with app.upstreams.kept():
                with LagProbe(app.metrics.loop_lag.set):
                    yield Running(app, http, server, url)
    finally:
        await app.close()


async def look_for_upstreams(app: App) -> None:
    """Log a warning for upstreams that do not answer: an address may be wrong, or they may not have started yet."""
    configured = [one for one in app.upstreams.all if one is not app.engine and one.settings.replicas]
    silent = await asyncio.gather(*(upstream.why_silent() for upstream in configured))
    for upstream, why in zip(configured, silent, strict=True):
        if why:
            places = [replica.label for replica in upstream.gate.replicas]
            fields = {"upstream": upstream.name, "replicas": places, "why": why}
            log.warning("upstream does not answer", extra={"fields": fields})


async def drain(app: App, seconds: float, hurry: asyncio.Event | None = None) -> None:
    """Let requests in flight end, for at most `seconds` or until `hurry` is set; then end them with an error.

    Meanwhile the port stays open, so that /ready can say that no new requests should be sent.
    """
    app.drain()
    log.info("draining", extra={"fields": {"requests": app.inflight}})
    if not await within(seconds, app.idle(), (hurry or asyncio.Event()).wait()):
        await _break_off(app)


async def step_down(gateway: Running) -> None:
    """Leave the port to the other processes that still listen on it; answer what this one has accepted already."""
    gateway.server.close()
    await within(LAST_SECONDS, gateway.http.vacant())


async def hand_over(gateway: Running, seconds: float) -> None:
    """Leave the port to another process that listens on it: accept no connections, and wait until none is left.

    Connections end with their next answer. An idle one is not closed before its keep-alive time is over, because its
    client may just be sending a request. Requests that are left after `seconds` are ended with an error.
    """
    gateway.app.leave()
    gateway.server.close()
    log.info("handing over", extra={"fields": {"connections": len(gateway.http.connections)}})
    if not await within(seconds, gateway.http.vacant()):
        await _break_off(gateway.app)


async def _break_off(app: App) -> None:
    app.end(ApiError(503, "The gateway is shutting down.", type="server_error", code="shutting_down"))
    if not await within(AFTER_DRAIN_SECONDS, app.idle()):
        app.cut_off()
        log.warning("requests were cut off", extra={"fields": {"requests": app.inflight}})
