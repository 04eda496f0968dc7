"""`python -m engine MODEL`: the server process. It loads the tokenizer, starts the core, and serves.

Exit codes: 0 after SIGTERM, SIGINT or the end of standard input; 1 if the core failed; 2 for wrong options, a model
that cannot be served, settings that do not fit the model or the machine, or an address that cannot be listened on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from engine import logs
from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import ConfigError, CoreFailed, CoreRefused, ModelError
from engine.gc_freeze import gc_frozen
from engine.options import Options, engine_config, parse_arguments
from engine.server.announcing import Announcer, Registration
from engine.server.http import listening
from engine.server.metrics import Metrics
from engine.server.preparing.pooling import Pooling, read_pooling
from engine.server.router import Router
from engine.server.serving import Serving
from engine.text.tokenizer import Tokenizer, load_tokenizer
from nproxy.openai.errors import engine_unavailable

_DRAIN_SECONDS = 8.0  # the supervisor waits ten seconds before it kills
_FAREWELL_SECONDS = 2.0  # for requests to write their error event

log = logging.getLogger("engine")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it; return the exit code."""
    options, given = parse_arguments(argv)
    logs.configure(options.log_level.upper(), "%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would take cores away from the model
    try:
        with gc_frozen():
            config = engine_config(given)
            tokenizer = load_tokenizer(Path(config.model), config.tool_parser, config.reasoning_parser)
            pooling = read_pooling(config)
            name = _name(config)
    except (ConfigError, ModelError) as error:
        print(f"engine: {error}", file=sys.stderr)  # noqa: T201 (the one line of a wrong use)
        return 2
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # Windows has none
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(config, name, options, tokenizer, pooling))


async def _serve(
    config: EngineConfig, name: str, options: Options, tokenizer: Tokenizer, pooling: Pooling | None
) -> int:
    serving = Serving(config, name, tokenizer, options.stall_seconds, pooling)
    loop = asyncio.get_running_loop()
    departure = _Departure(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, departure.signalled)
    if options.exit_with_stdin:
        threading.Thread(target=_watch_stdin, args=(loop, departure.at_once), daemon=True).start()
    try:
        async with listening(serving, uds=options.uds, host=options.host, port=options.port) as address:
            log.info("listening on %s", address)
            return await _until_departure(config, serving, departure, options.registration)
    except OSError as error:
        log.error("cannot listen: %s", error)  # noqa: TRY400 (an address that is taken needs no traceback)
        return 2
    finally:
        serving.close()


async def _until_departure(
    config: EngineConfig, serving: Serving, departure: _Departure, registration: Registration | None
) -> int:
    code = 0
    try:
        async with asyncio.TaskGroup() as group:
            core = group.create_task(_run_core(config, serving))
            async with _announced(serving, registration):  # on exit: deregister before requests are refused
                await departure.begun.wait()
            serving.draining = True
            await serving.until_idle(_DRAIN_SECONDS)
            departure.at_once()  # requests that are not done by now get an error event
            await serving.until_idle(_FAREWELL_SECONDS)
            core.cancel()
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


async def _run_core(config: EngineConfig, serving: Serving) -> None:
    """Load the model and distribute steps until cancelled; raise CoreFailed."""
    began = asyncio.get_running_loop().time()
    core = await CoreClient.start(config, tokenizer=serving.tokenizer.backend.to_str())
    try:
        metrics = Metrics(core.ready)
        router = Router(core, metrics)
        serving.take_core(router, metrics)
        seconds = asyncio.get_running_loop().time() - began
        log.info("%s is ready after %.1f s: %s", serving.model, seconds, core.ready)
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


def _name(config: EngineConfig) -> str:
    """Return the model's name for clients; raise ConfigError if an adapter has that name."""
    name = config.served_model_name or _own_name(config.model)
    if name in dict(config.adapters):
        raise ConfigError(f"every adapter needs a unique name: '{name}' is the model's")
    return name


def _own_name(model: str) -> str:
    """Return the id of a model without a given one: its folder's name, or its file's name without the suffix."""
    path = Path(model).resolve()
    return path.name if path.is_dir() else path.stem


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # sys.exit would wait for a thread in which a chat template runs forever
