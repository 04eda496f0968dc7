"""Runs a gateway of several workers: signals, reloads, rolling restarts, the admin port, the drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from nproxy import __version__
from nproxy.concurrency.tasks import beside
from nproxy.config import Reading
from nproxy.gateway.admin.port import admin_port
from nproxy.gateway.listening import base_url
from nproxy.gateway.reload import Reload
from nproxy.gateway.serve import follow
from nproxy.gateway.signals import calls, ending_signals
from nproxy.telemetry.common_metrics import CommonMetrics
from nproxy.telemetry.metrics import ParentMetrics
from nproxy.workers.parent import Parent
from nproxy.workers.supervisor import Supervisor

log = logging.getLogger("nproxy.workers")


async def serve(
    reading: Reading,
    listener: socket.socket,
    *,
    log_level: str,
    engine_socket: Path | None,
    admin_sock: socket.socket | None,
    ready: Callable[[str, CommonMetrics], None],
    stop: asyncio.Event,
    reloaded: Callable[[Reload], None],
) -> None:
    """Serve with `listen.workers` processes until SIGTERM, SIGINT or `stop`; then drain as one process does.

    listener, admin_sock: listening sockets. engine_socket: the Unix socket of the built-in engine. ready: called once
    with the base URL and the metrics, when every slot has had a worker that accepts connections, unless the gateway is
    ending by then. reloaded: called at every reload. SIGHUP reloads, SIGUSR2 replaces the workers one after the other.
    Raises WorkersFailed.
    """
    hurry = asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.enter_context(ending_signals(stop, hurry))
        metrics = ParentMetrics(__version__)
        parent = Parent(reading, listener, log_level=log_level, engine_socket=engine_socket, metrics=metrics)
        stack.push_async_callback(parent.close)
        if parent.config.admin is not None:
            url = await stack.enter_async_context(admin_port(parent, parent.registrar, admin_sock))
            log.info("the admin port is listening", extra={"fields": {"url": url}})
        greeting = partial(ready, base_url(listener, tls=parent.config.listen.tls is not None), metrics)
        await stack.enter_async_context(follow(parent.reading, parent.serve, parent.history, reloaded))
        async with beside(
            _restart_when_asked(parent),
            _greet(parent.supervisor, greeting),
            _drain_when_told(parent, stop, hurry),
        ):
            await parent.supervisor.run()


async def _drain_when_told(parent: Parent, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    await stop.wait()
    log.info("draining")
    parent.supervisor.drain(parent.config.listen.drain_seconds)
    await hurry.wait()
    parent.supervisor.drain(0.0)


async def _restart_when_asked(parent: Parent) -> None:
    """Replace the workers at every SIGUSR2. If one comes during a replacement, they are replaced once more."""
    with calls(parent.restart, signal.SIGUSR2):
        await parent.supervisor.started.wait()
        while True:
            await parent.to_restart.wait()
            parent.to_restart.clear()
            await parent.supervisor.roll()


async def _greet(supervisor: Supervisor, ready: Callable[[], None]) -> None:
    await supervisor.started.wait()
    if not supervisor.ending:
        ready()
