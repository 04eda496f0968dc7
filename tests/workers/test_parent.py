"""What the parent says for its workers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nproxy.config import Reading, Source
from nproxy.gateway.admission.messages import Admitted, Ask, answer_of, to_bytes
from nproxy.telemetry import logs
from nproxy.telemetry.metrics import ParentMetrics
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.workers import backoff, parent, supervisor
from nproxy.workers.channel import ChannelClosed
from nproxy.workers.messages import (
    Admission,
    Crowding,
    Drain,
    Json,
    LegsOfLeaving,
    Message,
    Query,
    Ready,
    Result,
    Start,
    Taught,
)
from nproxy.workers.parent import Parent
from nproxy.workers.process import Worker
from tests.waiting import until

LESSON = Taught("u", "m", ("NativeWidth", {"asked": 4, "got": 2}))


class Answering:
    """A worker that says whether it is ready after some seconds."""

    def __init__(self, reason: str | None, seconds: float = 0.0) -> None:
        self._reason, self._seconds = reason, seconds

    async def ask(self, what: str, seconds: float) -> str | None:
        assert what == "ready"
        async with asyncio.timeout(seconds):
            await asyncio.sleep(self._seconds)
        return self._reason


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], "No worker is ready."),
        ([Answering("No model."), Answering("No model.")], "No model."),
        ([Answering("No model."), Answering(None)], None),
    ],
)
async def test_the_gateway_is_ready_if_a_worker_is(workers: list[Answering], reason: str | None) -> None:
    parent = SimpleNamespace(supervisor=SimpleNamespace(ending=False, serving=workers))
    assert await Parent.why_unready(cast("Any", parent)) == reason


async def test_a_gateway_that_drains_says_so() -> None:
    parent = SimpleNamespace(supervisor=SimpleNamespace(ending=True, serving=[]))
    assert await Parent.why_unready(cast("Any", parent)) == "The gateway is shutting down."


async def test_a_worker_that_does_not_answer_holds_up_no_answer_of_another() -> None:
    parent = SimpleNamespace(
        supervisor=SimpleNamespace(ending=False, serving=[Answering(None, 3600.0), Answering(None, 0.01)])
    )
    began = asyncio.get_running_loop().time()
    assert await Parent.why_unready(cast("Any", parent)) is None
    assert asyncio.get_running_loop().time() - began < 2.0


class Played(Worker):
    """A worker that is no process: it says what a test lets it say, and lives until it ends or all are to end.

    begun: its first message. told: the messages after it. answers: to questions, or what asking raises; without one its
    channel is closed.
    """

    begun: Start
    told: list[Message]
    answers: dict[str, Json]
    ends: asyncio.Event

    async def live(self, listener: socket.socket, start: Callable[[], Start]) -> None:
        self.told, self.answers, self.ends = [], {}, asyncio.Event()
        self.begun, self.state = start(), "serving"
        self.ready.set()
        self.say(Ready("1"))
        await self.ends.wait()
        self.ended.set()

    def say(self, message: Message) -> None:
        self._hear(self, message)

    def asks(self, ticket: str) -> None:
        self.say(Admission(to_bytes(Ask(f"{self.name}-{ticket}", "key", "u", 1))))

    @property
    def admitted(self) -> list[str]:
        told = [answer_of(message.message) for message in self.told if isinstance(message, Admission)]
        return [answer.ticket for answer in told if isinstance(answer, Admitted)]

    def send(self, message: Message) -> None:
        self.told.append(message)
        if isinstance(message, Drain) and message.how == "end":
            self.ends.set()

    async def ask(self, what: str, seconds: float) -> Json:
        answer = self.answers.get(what, ChannelClosed())
        if isinstance(answer, Exception):
            raise answer
        return answer


def read(choices: int, log_format: str = "json") -> Reading:
    """Settings that allow so many choices in flight."""
    limits = {"inflight_choices": choices, "queue_seconds": 60}
    settings: dict[str, dict[str, Any]] = {"LISTEN": {"workers": 2}, "N_POLICY": {"max_n": 1}, "LIMITS": limits}
    settings["TELEMETRY"] = {"log_format": log_format}
    upstreams = {"NPROXY_UPSTREAMS": "[{name: u, replicas: [http://127.0.0.1:9]}]"}
    return Source(None, {f"NPROXY_{key}": json.dumps(value) for key, value in settings.items()} | upstreams).read()


@asynccontextmanager
async def parent_of_two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parent]:
    monkeypatch.setattr(supervisor, "Worker", Played)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.0)
    with socket.socket() as listener:
        ours = Parent(read(1), listener, log_level="info", engine_socket=None, metrics=ParentMetrics("1"))
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(ours.supervisor.run())
            await ours.supervisor.started.wait()
            yield ours
            ours.supervisor.drain(0.0)
            for worker in played(ours):
                worker.ends.set()
        await ours.close()


def played(ours: Parent) -> list[Played]:
    return cast("list[Played]", ours.supervisor.living)


async def replaced(ours: Parent, worker: Played) -> Played:
    """The worker that took the slot of this one, which still lives."""
    await ours.supervisor.replace(worker)
    return played(ours)[-1]


async def test_the_permits_of_a_worker_that_dies_go_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, other = played(ours)
        one.asks("1")
        other.asks("1")
        assert (one.admitted, other.admitted) == ([f"{one.name}-1"], [])
        one.ends.set()
        await until(lambda: other.admitted)
        assert other.admitted == [f"{other.name}-1"]


async def test_other_limits_hold_for_all_workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, other = played(ours)
        one.asks("1")
        other.asks("1")
        assert other.admitted == []
        ours.serve(read(2))
        assert other.admitted == [f"{other.name}-1"]


async def test_the_log_format_of_other_settings_is_that_of_the_parent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    formats: list[str] = []
    monkeypatch.setattr(logs, "reformat", formats.append)  # the log is that of the tests
    async with parent_of_two(monkeypatch) as ours:
        ours.serve(read(1, log_format="text"))
    assert formats == ["text"]


async def test_a_new_worker_knows_the_lessons_that_still_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, other = played(ours)
        one.say(LESSON)
        assert LESSON in other.told and LESSON not in one.told
        assert (await replaced(ours, one)).begun.lessons == (LESSON,)
        monkeypatch.setattr(parent, "LESSON_SECONDS", 0.0)
        assert (await replaced(ours, other)).begun.lessons == ()


async def test_other_settings_end_the_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, _ = played(ours)
        one.say(LESSON)
        ours.serve(read(2))
        assert (await replaced(ours, one)).begun.lessons == ()


async def test_only_its_successors_leave_a_worker_the_places_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        old, other = played(ours)
        young = await replaced(ours, old)
        held = LegsOfLeaving(old.name, {"u": {"http://127.0.0.1:9/v1": 1}})
        old.say(held)
        assert held in young.told and held not in other.told and held not in old.told
        youngest = await replaced(ours, young)
        assert youngest.begun.predecessors == (held,)
        assert (await replaced(ours, other)).begun.predecessors == ()
        old.ends.set()
        await until(lambda: old not in ours.supervisor.living)
        assert youngest.told == [LegsOfLeaving(old.name, {})]


async def test_a_freed_slot_goes_to_the_worker_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, other = played(ours)
        room = Crowding(PeerNews("u", None, "", "room", other.name))
        one.say(room)
        assert (one.told, other.told) == ([], [room])
        one.say(Crowding(PeerNews("u", None, "", "room", "gone")))
        assert (one.told, other.told) == ([], [room])


@pytest.mark.parametrize("why", [ChannelClosed(), TimeoutError()])
async def test_the_status_is_that_of_all_workers_also_if_one_does_not_answer(
    why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parent_of_two(monkeypatch) as ours:
        one, other = played(ours)
        other.answers["status"] = why
        one.answers["status"] = {"inflight": {"requests": 3}}
        one.say(Query(7, "status"))
        await until(lambda: one.told)
        (told,) = one.told
        assert isinstance(told, Result) and told.number == 7
        assert told.data["draining"] is False and told.data["inflight"] == {"requests": 3}
        assert [worker["inflight"] for worker in told.data["workers"]] == [{"requests": 3}, None]
        ours.supervisor.drain(0.0)
        assert (await ours.status())["draining"] is True


@pytest.mark.parametrize("why", [ChannelClosed(), TimeoutError()])
async def test_a_worker_that_does_not_answer_is_not_ready(why: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent_of_two(monkeypatch) as ours:
        for worker in played(ours):
            worker.answers["ready"] = why
        assert await ours.why_unready() == "A worker does not answer."
