"""The built-in engine as a supervised child: started, watched, started again when it dies or hangs, and ended with us.

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

from nproxy.cli.private_folder import private_folder
from nproxy.config import Engine
from nproxy.models import LocalModel
from nproxy.upstreams.tasks import beside
from nproxy.workers.backoff import Backoff
from nproxy.workers.endings import how_it_ended, within

log = logging.getLogger("nproxy.engine")

STOP_SECONDS = 10.0
"""How long the child may take to end after SIGTERM before it is killed."""
HEALTH_SECONDS, HEALTH_LIMIT, HEALTH_FAILURES = 5.0, 10.0, 3
"""Seconds between two looks at the health of a child that was ready, seconds that an answer may take, and how many
looks in a row must fail before it counts as hung. Counted and not timed: after a pause of the whole machine it has
as many chances as ever."""

_STANDARD_ERROR = 2
_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2", "numpy")


class EngineFailed(Exception):
    """The engine could not be started; the message is for the user, without a traceback."""


def demand_installed() -> None:
    """Raise EngineFailed where the packages of the engine are not installed; imports none of them."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise EngineFailed(
            f"the built-in engine needs {missing[0]}: pip install '.[engine]' in nproxy's folder"
            " (or give another server: nproxy serve --upstream URL)"
        )


def command(settings: Engine, model: LocalModel, socket: Path, log_level: str) -> list[str]:
    """The words that start the engine; options whose setting is null are left to the engine."""
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
        # at `info` the engine tells of its start, and so do we
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
    # -P: a folder named engine where the user stands is not the engine
    return [sys.executable, "-P", "-m", "engine", str(model.path), *given, "--exit-with-stdin"]


@contextlib.contextmanager
def private_socket() -> Iterator[Path]:
    """A path for a Unix socket in a new folder of mode 0700, removed afterwards."""
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > 64:  # a socket's path may have about 100 bytes, and some systems have deep folders
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
    """Keep the engine running while the body runs, and end it afterwards.

    ready: called at each readiness with the seconds that the start took. restarted: called whenever it is started
    again. Raises EngineFailed, and cancels the body, when the engine ends before it was ready for the first time. Later
    it is started again, with growing pauses, when it dies, and when its health fails for long.
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
            raise EngineFailed(f"the engine {how} before it was ready")
        pause = backoff.after(clock() - began)
        log.error("engine %s; starting it again in %.1f s", how, pause)
        await asyncio.sleep(pause)
        restarted()


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
        if not await within(STOP_SECONDS, child.wait()):
            log.warning("engine did not end within %.0f s of SIGTERM; killing it", STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


def _session(socket: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)))


async def _becomes_ready(child: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> bool:
    """Wait until the child is well (true) or has ended (false)."""
    while child.returncode is None:
        if await _illness(session) is None:
            return True
        await within(0.1, child.wait())
    return False


async def _hangs(child: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> bool:
    """Wait until the child has ended (false), or has been found unwell too often in a row (true)."""
    failures = 0
    while failures < HEALTH_FAILURES:
        if await within(HEALTH_SECONDS, child.wait()):
            return False
        illness = await _illness(session)
        failures = 0 if illness is None else failures + 1
        if illness is not None and child.returncode is None:
            log.warning("engine is not well (%d of %d): %s", failures, HEALTH_FAILURES, illness)
    return True


async def _illness(session: aiohttp.ClientSession) -> str | None:
    """What is wrong with the child, as GET /health tells; None when it is well."""
    try:
        async with session.get("http://engine/health", timeout=aiohttp.ClientTimeout(total=HEALTH_LIMIT)) as answer:
            return None if answer.status == 200 else f"{answer.status} {(await answer.text())[:200]}"
    except TimeoutError:
        return f"no answer within {HEALTH_LIMIT:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{type(error).__name__}: {error}"
