"""Real processes on loopback. They are started for a test, and ended after it, including their child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]

END_SECONDS = 15.0
"""How long a process may take to end after SIGTERM before the test fails."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running HTTP server. url: without a path. log: the file that holds what it printed."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def v1(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"

    def children(self) -> list[psutil.Process]:
        """All child processes, at any depth."""
        below: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return below

    def family(self) -> list[psutil.Process]:
        """This process and all child processes."""
        return [psutil.Process(self.process.pid), *self.children()]

    def kill(self) -> None:
        """Kill all of these processes, as a system without memory does."""
        for process in self.family():
            with suppress(psutil.NoSuchProcess):  # it may have ended with its parent
                process.kill()
        self.process.wait()


@contextmanager
def server(
    argv: Sequence[str],
    *,
    port: int,
    log: Path,
    ready: str,
    env: Mapping[str, str] | None = None,
    seconds: float = 60.0,
) -> Iterator[Server]:
    """Run `argv`; yield when `ready` (a path) answers 200; end it afterwards, with everything that it started.

    Raises RuntimeError, with the end of its log, if it ends early, is not ready within `seconds`, does not end after
    SIGTERM, or leaves processes behind.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(
            argv, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **(env or {})}
        )
    try:
        _wait_until_ready(child, f"http://127.0.0.1:{port}{ready}", log, seconds)
        yield Server(f"http://127.0.0.1:{port}", child, log)
    finally:
        _end(child, log)


@contextmanager
def nproxy(
    *arguments: str, log: Path, ready: str = "/ready", seconds: float = 60.0, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run `nproxy serve` with these arguments on a free port; yield when `ready` answers 200.

    `/health` needs no upstream, `/ready` does.
    """
    port = free_port()
    argv = [sys.executable, "-m", "nproxy", "serve", "--host", "127.0.0.1", "--port", str(port), *arguments]
    with server(argv, port=port, log=log, ready=ready, env=env, seconds=seconds) as running:
        yield running


def _wait_until_ready(child: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"ended with {child.returncode} before it was ready\n{_tail(log)}")
        try:
            if httpx.get(url, timeout=2.0, verify=False, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{url} did not answer 200 within {seconds:.0f} s\n{_tail(log)}")


def _end(child: subprocess.Popen[bytes], log: Path) -> None:
    if child.poll() is not None:
        child.wait()
        return
    family = psutil.Process(child.pid).children(recursive=True)
    child.terminate()
    late = False
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        late = True
        child.kill()
        child.wait()
    deadline = time.monotonic() + 2.0
    while (orphans := [process for process in family if not ended(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for orphan in orphans:
        orphan.kill()
    if late:
        raise RuntimeError(f"did not end within {END_SECONDS:.0f} s of SIGTERM\n{_tail(log)}")
    if orphans:
        raise RuntimeError(f"left {len(orphans)} process(es) behind\n{_tail(log)}")


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended. A process that its parent has not waited for yet counts as ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _tail(log: Path, size: int = 4000) -> str:
    return log.read_text(errors="replace")[-size:]
