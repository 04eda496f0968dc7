"""Blocking work beside the event loop that may never end, or for which there is no thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nproxy.concurrency.daemon_thread import in_daemon_thread
from tests.gateway.reloading import following, write
from tests.waiting import until

ROOT = Path(__file__).parents[2]

ON_A_FILE_SYSTEM_THAT_HANGS = """
import asyncio, sys, threading
from pathlib import Path
from nproxy.config import Source, watching
from nproxy.gateway import loop
from nproxy.gateway.reload import Reloader

hangs = threading.Event()

def stat(path):
    hangs.set()
    threading.Event().wait()

watching._stamp = stat

async def main():
    reading = Source(Path(sys.argv[1]), {}).read()
    following = asyncio.create_task(Reloader(reading, print, print, 0.01).run())
    while not hangs.is_set():
        await asyncio.sleep(0.01)
    following.cancel()

loop.run(main())
"""


async def test_what_it_returns_or_raises() -> None:
    assert await in_daemon_thread(lambda: threading.current_thread().name, "named") == "named"
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 / 0, "named")


async def test_work_that_nobody_waits_for_any_more_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    go_on = threading.Event()
    task = asyncio.create_task(in_daemon_thread(go_on.wait, "left alone"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    go_on.set()
    await until(lambda: "left alone" not in {thread.name for thread in threading.enumerate()})
    assert capfd.readouterr().err == ""


def test_a_process_ends_although_the_file_system_of_its_settings_hangs(tmp_path: Path) -> None:
    write(tmp_path / "nproxy.yaml", "{}")
    argv = [sys.executable, "-c", ON_A_FILE_SYSTEM_THAT_HANGS, str(tmp_path / "nproxy.yaml")]
    assert subprocess.run(argv, cwd=ROOT, timeout=60, check=False).returncode == 0


async def test_settings_are_followed_again_once_threads_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a control group or a user may have no more tasks."""
    refused = 0

    def refuse(_: threading.Thread) -> None:
        nonlocal refused
        refused += 1
        raise RuntimeError("can't start new thread")

    async with following(tmp_path / "nproxy.yaml", {}) as gateway:
        looking = asyncio.create_task(gateway.reloader.run())
        with monkeypatch.context() as shortage:
            shortage.setattr(threading.Thread, "start", refuse)
            await until(lambda: refused > 2 or looking.done())
            write(gateway.file, {"listen": {"port": 0}, "n_policy": {"max_n": 2}})
        await until(lambda: gateway.app.config.n_policy.max_n == 2 or looking.done())
        assert not looking.done()
        looking.cancel()
