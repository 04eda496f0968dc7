"""`nproxy serve`: the socket, the model, the engine child and the gateway, in this order."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rich.console import Console

from nproxy import models
from nproxy.cli import engine_child, engine_needs
from nproxy.cli.open_files import take_all_files
from nproxy.cli.wrong_use import FAILED, WRONG_USE
from nproxy.config import Config, Engine, Reading
from nproxy.gateway import loop
from nproxy.gateway.listening import BACKLOG
from nproxy.gateway.open_port import warn_of_an_open_port
from nproxy.gateway.reload import Reload
from nproxy.gateway.serve import serve
from nproxy.telemetry import logs
from nproxy.telemetry.common_metrics import CommonMetrics
from nproxy.workers.notify import READY, Notifier
from nproxy.workers.serving import serve as serve_by_workers
from nproxy.workers.supervisor import WorkersFailed

_ONE_PROCESS = "SIGUSR2 replaces workers one by one, but this gateway is a single process; see listen.workers"

log = logging.getLogger("nproxy")


class ServeFailed(Exception):
    """Serving cannot start or continue; the message is one line for the user. code: the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def run(reading: Reading, log_level: str) -> None:
    """Serve the settings that were read until a signal ends it.

    Raises ServeFailed, and ConfigError if the engine's model or adapters cannot be used.
    """
    take_all_files()
    config = reading.checked()
    logs.configure(log_level, config.telemetry.log_format)
    listen, admin = config.listen, config.admin
    with ExitStack() as stack:
        sock = stack.enter_context(_listen(listen.host, listen.port, "--port"))
        admin_sock = None if admin is None else stack.enter_context(_listen(admin.host, admin.port, "admin.port"))
        warn_of_an_open_port(config)
        _warn_of_many_workers(config, os.cpu_count() or 1)
        model = None if config.engine is None else _model(config.engine, reading)
        try:
            loop.run(_serve(reading, sock, admin_sock, model, log_level))
        except engine_child.EngineRefused as error:
            raise ServeFailed(str(error), WRONG_USE) from error
        except (engine_child.EngineFailed, WorkersFailed) as error:
            raise ServeFailed(str(error)) from error


def _warn_of_many_workers(config: Config, processors: int) -> None:
    workers = config.listen.workers
    if workers > 4 * processors:  # some more than one each do no harm
        log.warning("listen.workers is %d: more than one for each of the %d processors is no use", workers, processors)


def _listen(host: str, port: int, key: str = "--port") -> socket.socket:
    """Bind the port first, so that it is known to be free before a model is fetched and loaded.

    key: the option or setting that chooses another port. Binding is not enough: with SO_REUSEADDR several sockets may
    be bound to one port, and only one of them may listen.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeFailed(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ServeFailed(_why_not(error, host, port, key)) from error
    return sock


def _why_not(error: OSError, host: str, port: int, key: str) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use; choose another with {key}"
    return f"cannot listen on {address}: {error.strerror or error}"


def _model(engine: Engine, reading: Reading) -> models.LocalModel:
    """Return the engine's model; fetches it if it is not on this machine."""
    engine_needs.demand_usable(engine, reading)
    try:
        engine_needs.demand_installed()
        return models.resolve(engine.model, engine_needs.model_folder(reading))
    except (models.ModelError, engine_needs.NotInstalled) as error:
        raise ServeFailed(str(error)) from error


async def _serve(
    reading: Reading,
    sock: socket.socket,
    admin_sock: socket.socket | None,
    model: models.LocalModel | None,
    log_level: str,
) -> None:
    """Serve with one process or several; if there is an engine, readiness is announced only once it is ready."""
    config, stop = reading.checked(), asyncio.Event()
    shown = _named_model(config) if model is None else model.id
    herald = _Herald(
        Notifier.of(os.environ),
        shown,
        keys=config.auth is not None,
        playground=config.pages.playground,
        loading=model is not None,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(herald.notifier.serving(stop))
        engine_socket = None
        if model is not None and config.engine is not None:
            engine_socket = await stack.enter_async_context(_engine(config.engine, model, log_level, herald))
        if config.listen.workers > 1:
            await serve_by_workers(
                reading,
                sock,
                admin_sock=admin_sock,
                log_level=log_level,
                engine_socket=engine_socket,
                ready=herald.listens,
                stop=stop,
                reloaded=herald.reloaded,
            )
        else:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, log.warning, _ONE_PROCESS)
            await serve(
                reading,
                engine_socket=engine_socket,
                sock=sock,
                admin_sock=admin_sock,
                ready=herald.listens,
                stop=stop,
                reloaded=herald.reloaded,
            )


@asynccontextmanager
async def _engine(settings: Engine, model: models.LocalModel, log_level: str, herald: _Herald) -> AsyncIterator[Path]:
    """Keep the engine running while the block runs; gives its socket, on which it may not answer yet."""
    log.info("loading %s", model.id)
    with (
        engine_child.private_socket() as engine_socket,
        Console(stderr=True, highlight=False).status(f"loading {model.id}") as loading,
    ):

        def ready(seconds: float) -> None:
            loading.stop()
            log.info("engine ready with %s after %.1f s", model.id, seconds)
            herald.engine_ready()

        argv = engine_child.command(settings, model, engine_socket, log_level)
        async with engine_child.supervised(argv, engine_socket, ready, herald.engine_restarted):
            yield engine_socket


@dataclass(slots=True)
class _Herald:
    """Tells the user and systemd when serving has begun: the gateway listens and the engine, if any, is ready."""

    notifier: Notifier
    """The connection to systemd."""
    model: str | None
    """The model name in the example call."""
    _: KW_ONLY
    keys: bool
    """Whether clients must send a key."""
    playground: bool
    """Whether the playground is enabled."""
    loading: bool
    """Whether the engine has not been ready yet."""
    _url: str | None = None
    _metrics: CommonMetrics | None = None

    def listens(self, url: str, metrics: CommonMetrics) -> None:
        """Note that the gateway accepts connections. To be called once."""
        self._url, self._metrics = url, metrics
        self._greet()

    def engine_ready(self) -> None:
        """Note that the engine is ready, for the first time or again."""
        if self.loading:
            self.loading = False
            self._greet()

    def engine_restarted(self) -> None:
        """Note that the engine had ended and was restarted."""
        if self._metrics is not None:
            self._metrics.engine_restarts.inc()

    def reloaded(self, _: Reload) -> None:
        """Note that settings were read again.

        Before serving has begun this is part of the start, and systemd must not be told READY yet.
        """
        if self._url is not None and not self.loading:
            self.notifier.reloading()
            self.notifier.tell(READY)

    def _greet(self) -> None:
        if self._url is not None and not self.loading:
            logs.say(_greeting(self._url, self.model, keys=self.keys, playground=self.playground))
            self.notifier.tell(READY)


def _named_model(config: Config) -> str | None:
    """Return a model that the configuration names, for the example call."""
    return next(
        (alias for upstream in config.upstreams if upstream.models != "auto" for alias in upstream.models), None
    )


def _greeting(url: str, model: str | None, *, keys: bool, playground: bool) -> str:
    """Return where the gateway listens, an example call, and a page.

    keys: clients must send a key. playground: the page exists.
    """
    base = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    key = " -H 'authorization: Bearer KEY'" if keys else ""
    if model is None:
        call = f"curl -s {base}/v1/models{key}"
    else:
        body = {"model": model, "messages": [{"role": "user", "content": "Name a color."}], "n": 4, "max_tokens": 40}
        sent = shlex.quote(json.dumps(body))
        call = f"curl -s {base}/v1/chat/completions{key} -H 'content-type: application/json' -d {sent}"
    page = f"\nor open {base}/ in a browser" if playground else ""
    return f"nproxy listens on {url}\ntry: {call}{page}"
