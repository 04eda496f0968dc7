"""`nproxy serve`: the socket, the model, the engine child and the gateway, in this order."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import shlex
import socket

import uvloop
from rich.console import Console

from nproxy import models
from nproxy.cli import engine_child
from nproxy.cli.standard_streams import open_missing
from nproxy.config import Config, Engine, Reading
from nproxy.gateway.serve import BACKLOG, serve
from nproxy.telemetry import logs

log = logging.getLogger("nproxy")


class ServeFailed(Exception):
    """Serving cannot start or go on; the message is one line for the user."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(reading: Reading, log_level: str) -> None:
    """Serve the settings that were read until a signal ends it. Raises ServeFailed."""
    open_missing()
    config = reading.checked()
    logs.configure(log_level, config.telemetry.log_format)
    with _listen(config.listen.host, config.listen.port) as sock:
        model = _model(config.engine) if config.engine is not None else None
        try:
            uvloop.run(_serve(reading, sock, model, log_level))
        except engine_child.EngineFailed as error:
            raise ServeFailed(str(error)) from error


def _listen(host: str, port: int) -> socket.socket:
    """Take the port first: whether it is free is known before a model is fetched and loaded.

    Bound is not enough: with SO_REUSEADDR several sockets may be bound to one port, and only one of them may listen.
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
        raise ServeFailed(_why_not(error, host, port)) from error
    return sock


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{host}:{port} is in use; choose another with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def _model(engine: Engine) -> models.LocalModel:
    """The engine's model, fetched where it is not here yet."""
    try:
        engine_child.demand_installed()
        return models.resolve(engine.model)
    except models.NoSuchModel as error:
        raise ServeFailed(str(error), exit_code=2) from error
    except (models.ModelError, engine_child.EngineFailed) as error:
        raise ServeFailed(str(error)) from error


async def _serve(reading: Reading, sock: socket.socket, model: models.LocalModel | None, log_level: str) -> None:
    config = reading.checked()
    if model is None or config.engine is None:
        await serve(
            config, sock=sock, ready=lambda url: logs.say(_greeting(url, _named_model(config))), reading=reading
        )
        return
    log.info("loading %s", model.id)
    loading = Console(stderr=True, highlight=False).status(f"loading {model.id}")
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    to_greet = [model.id]

    def engine_ready(seconds: float) -> None:
        loading.stop()
        log.info("engine ready with %s after %.1f s", model.id, seconds)
        if to_greet:  # only at its first readiness, and when the gateway listens too
            name = to_greet.pop()
            listening.add_done_callback(lambda done: logs.say(_greeting(done.result(), name)))

    with engine_child.private_socket() as engine_socket, loading:
        argv = engine_child.command(config.engine, model, engine_socket, log_level)
        async with engine_child.supervised(argv, engine_socket, engine_ready):
            await serve(config, engine_socket=engine_socket, sock=sock, ready=listening.set_result, reading=reading)


def _named_model(config: Config) -> str | None:
    """A model that the configuration names, for the example."""
    return next(
        (alias for upstream in config.upstreams if upstream.models != "auto" for alias in upstream.models), None
    )


def _greeting(url: str, model: str | None) -> str:
    """Where the gateway listens, and a call to try."""
    base = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    if model is None:
        call = f"curl -s {base}/v1/models"
    else:
        body = {"model": model, "messages": [{"role": "user", "content": "Name a color."}], "n": 4, "max_tokens": 40}
        call = (
            f"curl -s {base}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
        )
    return f"nproxy listens on {url}\ntry: {call}"
