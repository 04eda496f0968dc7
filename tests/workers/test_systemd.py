"""nproxy as a service of systemd: what it tells over a real notify socket, and the unit file."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nproxy.workers.notify import READY, STOPPING, WATCHDOG, Notifier
from tests.real.processes import ROOT

UNIT = ROOT / "deploy" / "systemd" / "nproxy.service"
PATIENCE = 60.0


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def next(self) -> list[str]:
        """The lines of the next message that is no sign of life."""
        while True:
            async with asyncio.timeout(PATIENCE):
                said = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
            if said.decode() != WATCHDOG:
                return said.decode().splitlines()

    async def sign_of_life(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode() != WATCHDOG:
                pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    listening = Systemd(tmp_path / "n")
    yield listening
    listening.close()


@asynccontextmanager
async def service(systemd: Systemd, workers: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nproxy", "serve", "--port", "0", "--upstream", "http://127.0.0.1:9"),
        *("--workers", str(workers)),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "500000"},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_tells_when_it_is_ready_reloads_lives_and_stops(systemd: Systemd, workers: int) -> None:
    async with service(systemd, workers) as process:
        assert await systemd.next() == [READY]
        await systemd.sign_of_life()
        before = time.monotonic_ns() // 1000
        process.send_signal(signal.SIGHUP)
        began, when = await systemd.next()
        assert began == "RELOADING=1"
        assert before <= int(when.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
        assert await systemd.next() == [READY]
        process.terminate()
        assert await systemd.next() == [STOPPING]
        assert await process.wait() == 0


async def test_signs_of_life_come_twice_as_often_as_they_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, pauses = asyncio.sleep, list[float]()

    async def long(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(3600)

    monkeypatch.setattr(asyncio, "sleep", long)
    async with Notifier(None, 3.0).serving(asyncio.Event()):
        await sleep(0.01)
    assert pauses == [1.5]


def test_what_is_in_the_environment_is_taken_out_of_it() -> None:
    environ = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier.of(environ) == Notifier("/run/n", 3.0)
    assert environ == {"HOME": "/"}, "children are not the service"
    assert Notifier.of({"WATCHDOG_USEC": "0"}) == Notifier(None, None), "it is switched off"
    assert Notifier.of({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}) == Notifier(None, None), "meant for another process"
    assert Notifier.of({}) == Notifier(None, None)


def test_a_socket_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "gone")).tell(READY)
    Notifier("@nproxy-nobody-listens").tell(READY)
    Notifier(None).tell(READY)


def test_a_socket_without_a_file() -> None:
    """Its name begins with @ in the variable, and with a null byte in the system (sd_notify(3))."""
    name = f"nproxy-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.setblocking(False)
        Notifier(f"@{name}").tell(READY, "STATUS=serving")
        assert listening.recv(4096) == b"READY=1\nSTATUS=serving"


@pytest.mark.timeout(30)
def test_a_full_socket_holds_nothing_up(systemd: Systemd) -> None:
    for _ in range(10_000):
        Notifier(str(systemd.path)).tell(WATCHDOG)


def test_the_unit() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys are case-sensitive
    unit.read(UNIT)
    service = unit["Service"]
    assert service["Type"] == "notify" and service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["KillMode"] == "mixed"
    assert int(service["LimitNOFILE"]) >= 100_000
    assert int(service["TimeoutStopSec"]) > 30 + 5, "the default drain, and what follows it"
