"""The supervisor over real workers: one that hangs, one that does not end, a new one that is no good."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
import trustme

from nproxy.concurrency.tasks import beside
from nproxy.config import Source
from nproxy.workers import process
from nproxy.workers.messages import PROTOCOL, Admission, Message, NotAMessage, Reconfigure, Start
from nproxy.workers.process import Worker
from nproxy.workers.supervisor import Supervisor
from tests.clients import plain_client
from tests.gateway.secure import put, trust
from tests.waiting import until

PATIENCE = 60.0


SETTINGS = {"NPROXY_UPSTREAMS": "[{name: u, replicas: [http://127.0.0.1:9]}]"}


class Scene:
    """A supervisor of one worker. protocol, settings: what the next workers are told to speak and to serve."""

    def __init__(self, listener: socket.socket) -> None:
        self.protocol = PROTOCOL
        self.settings = Source(None, SETTINGS).read().message()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        self.restarts = 0
        self.lost: list[Worker] = []
        self.supervisor = Supervisor(
            listener,
            1,
            start=self._start,
            hear=lambda worker, message: self.hear(message),
            restarted=self._restarted,
            lost=self.lost.append,
        )

    def hear(self, message: Message) -> None:
        """What a worker says; tests put something else here."""

    def _restarted(self) -> None:
        self.restarts += 1

    def _start(self, worker: Worker) -> Start:
        return Start(
            protocol=self.protocol,
            index=worker.index,
            workers=1,
            name=worker.name,
            pseudonym="nproxy-1",
            settings=self.settings,
            log_level="warning",
            engine_socket=None,
        )

    @property
    def serving(self) -> int | None:
        """The process that serves."""
        return next((worker.pid for worker in self.supervisor.serving), None)


@asynccontextmanager
async def kept() -> AsyncIterator[Scene]:
    """One worker while the block runs; all have ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scene = Scene(listener)
        async with asyncio.timeout(PATIENCE), beside(scene.supervisor.run()):
            await scene.supervisor.started.wait()
            yield scene
        assert not scene.supervisor.living


async def test_a_worker_that_hangs_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kept() as scene:
        stopped = scene.serving
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(process, "TICK_SECONDS", 0.2)
        await until(lambda: bool(scene.lost), PATIENCE)
        monkeypatch.undo()  # the next one starts as fast as the machine lets it
        await until(lambda: scene.serving not in (stopped, None), PATIENCE)
        assert not psutil.pid_exists(stopped)
        assert [worker.how for worker in scene.lost][:1] == ["hangs"]
        assert scene.restarts >= 1


async def test_a_worker_that_does_not_end_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(process, "SILENT_TICKS", 1_000)
    monkeypatch.setattr(process, "END_SECONDS", 0.5)
    async with kept() as scene:
        stopped = scene.serving
        assert stopped is not None
        assert os.getsid(stopped) == stopped, "Ctrl-C reaches the parent only"
        os.kill(stopped, signal.SIGSTOP)
        scene.supervisor.drain(3600.0)
        scene.supervisor.drain(0.0)
        await until(lambda: not scene.supervisor.living, PATIENCE)
        assert [worker.how for worker in scene.lost] == ["did not exit in time"]
        assert scene.restarts == 0


async def test_a_new_worker_that_is_no_good_leaves_the_old_one_where_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    async with kept() as scene:
        old = scene.serving
        scene.protocol = PROTOCOL + 1
        assert not await scene.supervisor.roll()
        assert scene.serving == old
        assert [worker.how for worker in scene.lost] == ["ended with 1"]
        assert "nproxy: the parent process has another version; restart nproxy completely" in capfd.readouterr().err
        scene.protocol = PROTOCOL
        assert await scene.supervisor.roll()
        assert scene.serving not in (old, None)
        await until(lambda: len(scene.supervisor.living) == 1, PATIENCE)
        assert scene.restarts == 0


async def test_a_worker_that_wants_to_leave_is_replaced_once_whatever_else_replaces_it() -> None:
    async with kept() as scene:
        (old,) = scene.supervisor.serving
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(scene.supervisor.replace(old))
            rolled = tasks.create_task(scene.supervisor.roll())
        assert rolled.result()
        await until(lambda: len(scene.supervisor.living) == 1, PATIENCE)
        assert [worker.name for worker in scene.supervisor.serving] == ["w2"], "once for it, once for all"
        assert {worker.how for worker in scene.lost} == {"ended with 0"}
        assert scene.restarts == 0


async def test_a_worker_that_dies_while_another_starts_for_its_slot_is_not_replaced_twice() -> None:
    async with kept() as scene:
        (old,) = scene.supervisor.serving
        assert old.pid is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scene.supervisor.replace(old))
            await asyncio.sleep(0)
            os.kill(old.pid, signal.SIGKILL)
        await until(lambda: bool(scene.lost), PATIENCE)
        assert [worker.name for worker in scene.supervisor.living] == ["w1"]
        assert scene.restarts == 0


async def test_settings_that_cannot_be_served_any_more_are_told_of_without_a_traceback(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async with kept() as scene:
        tls = {"certificate": str(tmp_path / "gone.pem"), "key": str(tmp_path / "gone.pem")}
        scene.settings["data"]["listen"] = {"tls": tls}
        assert not await scene.supervisor.roll()
        said = capfd.readouterr().err
        assert f"a worker cannot serve the settings: {tls['certificate']}: cannot read" in said
        assert "Traceback" not in said


async def test_a_worker_shows_the_certificate_that_was_checked_although_its_files_are_no_good_any_more(
    tmp_path: Path,
) -> None:
    """A bad pair of files is refused by a reload; then a worker may die, and another one must start."""
    authority = trustme.CA()
    tls = put(tmp_path, authority.issue_cert("127.0.0.1"))
    settings = Source(None, {**SETTINGS, "NPROXY_LISTEN__TLS": json.dumps(tls)}).read().message()
    put(tmp_path, authority.issue_cert("127.0.0.1"), key=trustme.CA().issue_cert("127.0.0.1"))
    async with kept() as scene:
        scene.settings = settings
        assert await scene.supervisor.roll()
        await until(lambda: len(scene.supervisor.living) == 1, PATIENCE)
        async with httpx.AsyncClient(verify=trust(authority), timeout=PATIENCE) as client:
            health = scene.url.replace("http:", "https:").replace("/v1/chat/completions", "/health")
            assert (await client.get(health)).status_code == 200
        (worker,) = scene.supervisor.serving
        scene.supervisor.tell(Reconfigure({**settings, "pair": ["no", "pair"]}))
        scene.supervisor.tell(Reconfigure(settings))
        assert (await worker.ask("status", PATIENCE))["draining"] is False


async def test_told_to_end_before_anybody_was_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scene = Scene(listener)
        async with asyncio.timeout(PATIENCE), beside(scene.supervisor.run()):
            while not scene.supervisor.living:
                await asyncio.sleep(0)
            scene.supervisor.drain(3600.0)  # before there is a process that it could be told to
            await until(lambda: not scene.supervisor.living, PATIENCE)
        assert not scene.supervisor.started.is_set() or scene.lost


NO_THREADS = """
import threading

start = threading.Thread.start


def only_others(thread):
    if thread.name.startswith(("uvloop_", "offload_")):
        raise RuntimeError("can't start new thread")
    start(thread)


threading.Thread.start = only_others
"""


async def test_a_worker_that_can_start_no_thread_goes_on_and_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a control group or a user may have no more tasks."""
    (tmp_path / "sitecustomize.py").write_text(NO_THREADS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with kept() as scene:
        (worker,) = scene.supervisor.serving
        for _ in range(3):
            assert await scene.supervisor.report() == {}
            assert (await worker.ask("status", PATIENCE))["draining"] is False


async def test_a_worker_that_says_what_has_no_meaning_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kept() as scene:

        def nonsense(message: Message) -> None:
            assert isinstance(message, Admission)
            raise NotAMessage

        monkeypatch.setattr(scene, "hear", nonsense)
        speaking = scene.serving
        async with plain_client() as client:
            asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            answer = await client.post(scene.url, json=asked)  # it asks for permits, and is gone
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        await until(lambda: scene.serving not in (speaking, None), PATIENCE)
        assert scene.restarts == 1


async def test_a_worker_is_told_what_holds_when_it_listens_not_when_it_was_wanted() -> None:
    async with kept() as scene:
        rolling = asyncio.ensure_future(scene.supervisor.roll())
        while len(scene.supervisor.living) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # its process is being started
        scene.protocol = PROTOCOL + 1
        assert not await rolling


@asynccontextmanager
async def standing_still(pid: int | None) -> AsyncIterator[None]:
    """A process that does nothing, and so does not end, while the block runs."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_worker_that_dies_is_replaced_though_the_one_before_it_is_still_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "SILENT_TICKS", 1_000)
    async with kept() as scene:
        old = scene.serving
        async with standing_still(old):
            assert await scene.supervisor.roll()
            young = scene.serving
            assert young not in (old, None)
            os.kill(young, signal.SIGKILL)
            await until(lambda: scene.serving not in (young, None), PATIENCE)
            assert [worker.pid for worker in scene.supervisor.living if worker.state == "leaving"] == [old]
            assert scene.restarts == 1


async def test_no_worker_is_started_once_all_were_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_TICKS", 1_000)
    async with kept() as scene:
        async with standing_still(scene.serving):
            scene.supervisor.drain(30.0)
            assert not await scene.supervisor.roll()
            assert len(scene.supervisor.living) == 1
        await until(lambda: not scene.supervisor.living, PATIENCE)
