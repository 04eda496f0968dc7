"""The server process from the launch of its core to its end: it listens, waits for the model, and departs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import CoreFailed, CoreRefused
from engine.options import Options, Registration
from engine.server.announcing import Announcer
from engine.server.http import listening
from engine.server.metrics import Metrics
from engine.server.preparing.pooling import read_pooling
from engine.server.router import Router
from engine.server.serving import Serving
from engine.text.tokenizer import load_tokenizer
from nproxy.openai.errors import engine_unavailable

_DRAIN_SECONDS = 8.0  # the supervisor waits ten seconds before it kills
_FAREWELL_SECONDS = 2.0  # for requests to write their error event

log = logging.getLogger("engine")


def serving_of(config: EngineConfig, name: str, options: Options) -> Serving:
    """Read a model's tokenizer and pooling; raise ConfigError or ModelError if they cannot be used."""
    tokenizer = load_tokenizer(Path(config.model), config.tool_parser, config.reasoning_parser)
    return Serving(config, name, tokenizer, options.stall_seconds, read_pooling(config))


async def serve(core: CoreClient, serving: Serving, options: Options) -> int:
    """Serve until a signal, or the end of standard input, ends it; return the exit code of the process."""
    loop = asyncio.get_running_loop()
    departure = _Departure(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, departure.signalled)
    if options.exit_with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, departure.at_once), daemon=True).start()
    try:
        async with listening(serving, uds=options.uds, host=options.host, port=options.port) as address:
            log.info("listening on %s", address)
            return await _until_departure(core, serving, departure, options.registration)
    except OSError as error:
        log.error("cannot listen: %s", error)  # noqa: TRY400 (an address that is taken needs no traceback)
        return 2
    finally:
        serving.close()


async def _until_departure(
    core: CoreClient, serving: Serving, departure: _Departure, registration: Registration | None
) -> int:
    code = 0
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_run_core(core, serving))
            async with _announced(serving, registration):  # on exit: deregister before requests are refused
                await departure.begun.wait()
            serving.draining = True
            await serving.until_idle(_DRAIN_SECONDS)
            departure.at_once()  # requests that are not done by now get an error event
            await serving.until_idle(_FAREWELL_SECONDS)
            running.cancel()
    except* CoreFailed as failures:
        serving.lose_core()
        for failure in failures.exceptions:
            log.error("%s", failure)  # noqa: TRY400 (the core's own log has the traceback)
        await serving.until_idle(_FAREWELL_SECONDS)
        code = 2 if any(isinstance(failure, CoreRefused) for failure in failures.exceptions) else 1
    return code


def _announced(serving: Serving, registration: Registration | None) -> AbstractAsyncContextManager[None]:
    if registration is None:
        return contextlib.nullcontext()
    return Announcer(registration, (serving.model, *serving.adapters), lambda: serving.works).announced()


async def _run_core(core: CoreClient, serving: Serving) -> None:
    """Wait until the model is loaded, and distribute steps until cancelled; raise CoreFailed."""
    try:
        await core.loaded(serving.tokenizer.backend.to_str())
        metrics = Metrics(core.ready)
        router = Router(core, metrics)
        serving.take_core(router, metrics)
        log.info("%s is ready after %.1f s: %s", serving.model, time.monotonic() - core.launched, core.ready)
        await router.run()
    finally:
        await core.close()


class _Departure:
    """The shutdown: the first signal lets open requests end; a second signal, or the end of standard input,
    ends them now.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.begun = asyncio.Event()

    def signalled(self) -> None:
        """Handle SIGTERM or SIGINT."""
        if self.begun.is_set():
            self.at_once()
        self.begun.set()

    def at_once(self) -> None:
        """End the requests that still run with an error event."""
        self._serving.draining = True
        if self._serving.ready:
            self._serving.router.end(engine_unavailable("The engine is shutting down."))
        self.begun.set()


def _watch_stdin(loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Read standard input to its end, in a thread, which works for a pipe, a file and a terminal."""
    # os.read and not sys.stdin: a buffered read that still blocks at exit would abort the interpreter.
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has been closed in the meantime
        loop.call_soon_threadsafe(ended)
