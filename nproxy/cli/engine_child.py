"""The built-in engine as a supervised child: started, watched, started again when it dies, taken down with the gateway.

nproxy never imports the engine. It starts `python -m engine`, which serves the OpenAI wire on a Unix
socket in a folder that only this user can enter, and treats it as one more upstream.

The child leads a session of its own, so that Ctrl-C reaches the gateway alone and requests in flight
can end. Its standard input is a pipe that nobody writes to: when this process is gone, however it
went, the pipe is closed and the child ends (`--exit-with-stdin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import aiohttp

from nproxy.config import Engine
from nproxy.models import LocalModel

log = logging.getLogger("nproxy.engine")

STOP_SECONDS = 10.0
"""How long the child may take to end after SIGTERM before it is killed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a restart: the first, and where doubling ends."""
STEADY_SECONDS = 60.0
"""A child that has lived so long starts the pauses anew when it dies."""

_STANDARD_ERROR = 2
_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2", "numpy")


class EngineFailed(Exception):
    """The engine could not be started; the message is for the user, without a traceback."""


def demand_installed() -> None:
    """Raise EngineFailed where the packages of the engine are not installed; imports none of them."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise EngineFailed(
            f"the built-in engine needs {missing[0]}: pip install 'nproxy[engine]'"
            " (or give another server: nproxy serve --upstream URL)"
        )


def command(settings: Engine, model: LocalModel, socket: Path, log_level: str) -> list[str]:
    """The words that start the engine; options whose setting is null are left to the engine."""
    options = {
        "--uds": socket,
        "--served-model-name": model.id,
        "--dtype": settings.dtype,
        "--max-model-len": settings.max_model_len,
        "--max-sequences": settings.max_sequences,
        "--max-batch-tokens": settings.max_batch_tokens,
        "--num-blocks": settings.num_blocks,
        # at `info` the engine tells of its start, and so do we
        "--log-level": "warning" if log_level == "info" else log_level,
    }
    given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    # -P: a folder named engine where the user stands is not the engine
    return [sys.executable, "-P", "-m", "engine", str(model.path), *given, "--exit-with-stdin"]


@contextlib.contextmanager
def private_socket() -> Iterator[Path]:
    """A path for a Unix socket in a new folder of mode 0700, removed afterwards."""
    # a socket's path may have about 100 bytes, and some systems have deep temporary folders
    deep = len(os.fsencode(tempfile.gettempdir())) > 70
    folder = "/tmp" if deep else None  # noqa: S108 - the new folder in it is private
    with tempfile.TemporaryDirectory(prefix="nproxy-", dir=folder, ignore_cleanup_errors=True) as private:
        yield Path(private) / "engine.sock"


@contextlib.asynccontextmanager
async def supervised(argv: Sequence[str], socket: Path, ready: Callable[[float], None]) -> AsyncIterator[None]:
    """Keep the engine running while the body runs, and end it afterwards.

    ready: called at each readiness with the seconds that the start took. Raises EngineFailed, and
    cancels the body, when the engine ends before it was ready for the first time; later deaths lead
    to restarts with growing pauses.
    """
    try:
        async with asyncio.TaskGroup() as group:
            supervisor = group.create_task(_supervise(argv, socket, ready))
            yield
            supervisor.cancel()
    except BaseExceptionGroup as failures:
        if len(failures.exceptions) > 1:
            raise
        raise failures.exceptions[0] from None  # the body's own error, or the engine's: no group around it


async def _supervise(argv: Sequence[str], socket: Path, ready: Callable[[float], None]) -> None:
    clock = asyncio.get_running_loop().time
    pause, started_once = FIRST_PAUSE, False
    while True:
        socket.unlink(missing_ok=True)  # noqa: ASYNC240 - one name in a local folder
        began = clock()
        async with _process(argv) as child:
            if await _answers(child, socket):
                started_once = True
                ready(clock() - began)
                await child.wait()
        how = _how_it_ended(child.returncode)
        if not started_once:
            raise EngineFailed(f"the engine {how} before it was ready")
        if clock() - began > STEADY_SECONDS:
            pause = FIRST_PAUSE
        log.error("engine %s; starting it again in %.1f s", how, pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


@contextlib.asynccontextmanager
async def _process(argv: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """One life of the child; leaving ends it and everything it started.

    What it prints goes straight to our standard error: a log that nobody reads must not stop the gateway.
    """
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=_STANDARD_ERROR, start_new_session=True
    )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ask the child to end, then make it; its own children, which share its session, go with it."""
    if child.stdin is not None:
        child.stdin.close()
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await child.wait()
        except TimeoutError:
            log.warning("engine did not end within %.0f s of SIGTERM; killing it", STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


async def _answers(child: asyncio.subprocess.Process, socket: Path) -> bool:
    """Wait until GET /health answers 200 (true) or the child has ended (false)."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        while child.returncode is None:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get("http://engine/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                    if answer.status == 200:
                        return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await child.wait()
    return False


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
