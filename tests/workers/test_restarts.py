"""When a worker that has died is replaced, and when not: with workers that are no processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from nproxy.workers import backoff, supervisor
from nproxy.workers.messages import Drain, Message, Ready
from nproxy.workers.process import Worker
from nproxy.workers.supervisor import Supervisor
from tests.waiting import until

Life = Literal["unready", "ready", "stays"]
"""It dies before it is ready, or once it is; or it lives until it is told to end."""


def never(*_: object) -> Any:
    raise AssertionError("these workers hear and say nothing")


@asynccontextmanager
async def workers(monkeypatch: pytest.MonkeyPatch, *lives: Life, pause: float) -> AsyncIterator[Supervisor]:
    """A slot whose workers have these lives, one after the other, with such a pause between them."""
    script = iter(lives)

    class Scripted(Worker):
        async def live(self, listener: socket.socket, start: Callable[[], Any]) -> None:
            life = next(script, None)
            assert life is not None, "one too many"
            self.told = asyncio.Event()
            if life != "unready":
                self.state = "serving"
                self.ready.set()
                self._hear(self, Ready("1"))
            if life == "stays":
                await self.told.wait()
            self.ended.set()

        def send(self, message: Message) -> None:
            if isinstance(message, Drain):
                self.told.set()

    monkeypatch.setattr(supervisor, "Worker", Scripted)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", pause)
    with socket.socket() as listener:
        ours = Supervisor(listener, 1, start=never, hear=never, restarted=lambda: None)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(ours.run())
            await ours.started.wait()
            yield ours
            ours.drain(0.0)
    assert next(script, None) is None


async def test_once_it_has_served_a_gateway_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    dying: list[Life] = ["unready"] * (2 * supervisor.START_ATTEMPTS)
    async with workers(monkeypatch, "ready", *dying, "stays", pause=0.0) as running:
        await until(lambda: bool(running.serving))


async def test_told_to_end_during_a_pause_it_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(monkeypatch, "ready", pause=3600.0) as running:
        await until(lambda: not running.living)


async def test_a_worker_that_was_put_there_during_a_pause_stays_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers(monkeypatch, "ready", "stays", pause=0.5) as running:
        await until(lambda: not running.living)
        assert await running.roll()
        await asyncio.sleep(0.6)
        assert len(running.living) == 1
