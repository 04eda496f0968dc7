"""The built-in engine as a supervised child process: started, monitored, restarted if it dies or hangs, and stopped.

nproxy never imports the engine. It starts `python -m engine`, which serves the OpenAI API on a Unix socket in a folder
that only this user can enter, and treats it as one more upstream.

The child leads a session of its own, so that Ctrl-C reaches only the gateway and requests in flight can complete. Its
standard input is a pipe that nobody writes to: when this process ends, for whatever reason, the pipe is closed and the
child ends (`--exit-with-stdin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import aiohttp

from nproxy.cli.private_folder import private_folder
from nproxy.cli.wrong_use import WRONG_USE
from nproxy.concurrency.tasks import beside, within
from nproxy.config import Engine
from nproxy.models import LocalModel
from nproxy.workers.backoff import Backoff
from nproxy.workers.endings import how_it_ended

log = logging.getLogger("nproxy.engine")

STOP_SECONDS = 10.0
"""How long the child may take to end after SIGTERM before it is killed."""
HEALTH_SECONDS, HEALTH_LIMIT, HEALTH_FAILURES = 5.0, 10.0, 3
"""Seconds between two health checks of a child that was ready, seconds that an answer may take, and how many failed
checks in a row make it count as hung. Failures are counted rather than timed, so that after a pause of the whole
machine the child still has all of its chances."""

_STANDARD_ERROR = 2


class EngineFailed(Exception):
    """The engine could not be started; the message is for the user, without a traceback."""


class EngineRefused(EngineFailed):
    """It has said what is wrong with its settings or its model's files."""


def command(settings: Engine, model: LocalModel, socket: Path, log_level: str) -> list[str]:
    """Return the command line of the engine; options whose setting is null are left to the engine's defaults."""
    options = {
        "--uds": socket,
        "--served-model-name": model.id,
        "--dtype": settings.dtype,
        "--quantization": settings.quantization,
        "--device": settings.device,
        "--kernels": settings.kernels,
        "--max-model-len": settings.max_model_len,
        "--max-sequences": settings.max_sequences,
        "--max-batch-tokens": settings.max_batch_tokens,
        "--max-queue": settings.max_queue,
        "--block-size": settings.block_size,
        "--num-blocks": settings.num_blocks,
        "--kv-fraction": settings.kv_fraction,
        "--max-logprobs": settings.max_logprobs,
        "--tool-parser": settings.tool_parser,
        "--reasoning-parser": settings.reasoning_parser,
        "--max-responses": settings.max_responses,
        "--max-response-bytes": settings.max_response_bytes,
        "--pooling": settings.pooling,
        "--seed": settings.seed,
        "--stall-seconds": f"{settings.stall_seconds:g}",
        # at `info` the engine logs its start, and this process does so already
        "--log-level": "warning" if log_level == "info" else log_level,
    }
    given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    given += [word for name, folder in settings.adapters.items() for word in ("--lora", f"{name}={folder}")]
    switched = {
        "--no-prefix-cache": not settings.prefix_cache,
        "--no-cuda-graphs": not settings.cuda_graphs,
        "--deterministic": settings.deterministic,
    }
    given += [word for word, on in switched.items() if on]
    # -P: ignore a folder named engine in the current directory
    return [sys.executable, "-P", "-m", "engine", str(model.path), *given, "--exit-with-stdin"]


@contextlib.contextmanager
def private_socket() -> Iterator[Path]:
    """Give a path for a Unix socket in a new folder of mode 0700, removed afterwards."""
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > 64:  # a socket's path may have about 100 bytes, and some systems have long ones
        place = Path("/tmp")  # noqa: S108 - the new folder in it is private
    with private_folder(place) as folder:
        yield folder / "engine.sock"


@contextlib.asynccontextmanager
async def supervised(
    argv: Sequence[str],
    socket: Path,
    ready: Callable[[float], None],
    restarted: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Keep the engine running while the body runs, and stop it afterwards.

    ready: called each time it becomes ready, with the seconds that the start took. restarted: called at each restart.
    Raises EngineFailed, or EngineRefused, and cancels the body, if the engine ends before it was ready for the first
    time. Later it is restarted, with growing pauses, when it dies or when its health checks keep failing.
    """
    async with beside(_supervise(argv, socket, ready, restarted)):
        yield


async def _supervise(
    argv: Sequence[str], socket: Path, ready: Callable[[float], None], restarted: Callable[[], None]
) -> None:
    clock = asyncio.get_running_loop().time
    backoff, started_once = Backoff(), False
    while True:
        socket.unlink(missing_ok=True)  # noqa: ASYNC240 - one name in a local folder
        began = clock()
        hung = False
        async with _process(argv) as child, _session(socket) as session:
            if await _becomes_ready(child, session):
                started_once = True
                ready(clock() - began)
                hung = await _hangs(child, session)
        how = "hangs" if hung else how_it_ended(child.returncode)
        if not started_once:
            if child.returncode == WRONG_USE:
                raise EngineRefused("the engine cannot run with these settings; it says why above")
            raise EngineFailed(f"the engine {how} before it was ready")
        pause = backoff.after(clock() - began)
        log.error("engine %s; restarting it in %.1f s", how, pause)
        await asyncio.sleep(pause)
        restarted()


@contextlib.asynccontextmanager
async def _process(argv: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the child once; on exit, end it and everything it started.

    Its output goes straight to this process's standard error: a log that nobody reads must not block the gateway.
    """
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=_STANDARD_ERROR, start_new_session=True
    )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ask the child to end, then kill it; its own children, which share its session, are killed too."""
    if child.stdin is not None:
        child.stdin.close()
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        if not await within(STOP_SECONDS, child.wait()):
            log.warning("engine did not end within %.0f s of SIGTERM; killing it", STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


def _session(socket: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)))


async def _becomes_ready(child: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> bool:
    """Wait until the child is healthy (returns True) or has ended (False)."""
    while child.returncode is None:
        if await _illness(session) is None:
            return True
        await within(0.1, child.wait())
    return False


async def _hangs(child: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> bool:
    """Wait until the child has ended (returns False), or has failed too many health checks in a row (True)."""
    failures = 0
    while failures < HEALTH_FAILURES:
        if await within(HEALTH_SECONDS, child.wait()):
            return False
        illness = await _illness(session)
        failures = 0 if illness is None else failures + 1
        if illness is not None and child.returncode is None:
            log.warning("engine failed a health check (%d of %d): %s", failures, HEALTH_FAILURES, illness)
    return True


async def _illness(session: aiohttp.ClientSession) -> str | None:
    """Return what is wrong with the child according to GET /health; None if it is healthy."""
    try:
        async with session.get("http://engine/health", timeout=aiohttp.ClientTimeout(total=HEALTH_LIMIT)) as answer:
            return None if answer.status == 200 else f"{answer.status} {(await answer.text())[:200]}"
    except TimeoutError:
        return f"no answer within {HEALTH_LIMIT:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{type(error).__name__}: {error}"
