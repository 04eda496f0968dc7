"""What a worker makes of its parent's messages: here it is a task, and the test is the parent."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nproxy.concurrency.tasks import beside
from nproxy.config import Source
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import RoomAgain, message_of, to_bytes
from nproxy.gateway.admission.server import AdmissionServer
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import dumps
from nproxy.telemetry import logs
from nproxy.upstreams.upstreams import Upstreams
from nproxy.workers import parent, supervisor, worker
from nproxy.workers.channel import Channel, connect
from nproxy.workers.messages import (
    PROTOCOL,
    Admission,
    Beat,
    Drain,
    Json,
    Leave,
    LegsOfLeaving,
    Message,
    Query,
    Ready,
    Reconfigure,
    Result,
    Start,
    Taught,
)
from nproxy.workers.worker import work
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.waiting import until

LESSON = Taught("u", MODEL, ("NativeWidth", {"asked": 4, "got": 2}))


class Told:
    """The parent of one worker. said: what it says beside questions of admission, which are answered."""

    def __init__(self, url: str, ours: Any) -> None:
        self.url, self.said = url, list[Message]()
        self._channel = ours
        limits = Bounds(inflight=100, queue=100, seconds=60)
        admission = AdmissionServer(limits, lambda answer: self.tell(Admission(to_bytes(answer))))
        ours.admission = lambda message: admission.send(message_of(message.message))

    def tell(self, message: Message) -> None:
        self._channel.send(message)

    async def hear(self) -> None:
        async for message in self._channel.messages():
            self.said.append(message)

    async def upstream(self) -> dict[str, Json]:
        """The status of its upstream."""
        status = await self._channel.ask("status", 10.0)
        (upstream,) = status["upstreams"]
        return dict(upstream)

    async def ask(self) -> httpx.Response:
        async with plain_client(timeout=30) as client:
            asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
            return await client.post(f"{self.url}/v1/chat/completions", json=asked)


def settings(url: str, parallel: int) -> dict[str, Json]:
    upstream = {"name": "u", "replicas": [url], "models": [MODEL], "parallel": parallel}
    return Source(None, {"NPROXY_UPSTREAMS": dumps([upstream]).decode()}).read().message()


@asynccontextmanager
async def first_of_two(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream, *, index: int = 0, parallel: int = 2, **more: Any
) -> AsyncIterator[Told]:
    """One of two workers, once it is ready; it shares `parallel` with the other. more: fields of its first message."""
    configured: list[tuple[str, str]] = []
    monkeypatch.setattr(logs, "configure", lambda *given: configured.append(given))  # the log is that of the tests
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, theirs = socket.socketpair()
        told = Told(f"http://127.0.0.1:{listener.getsockname()[1]}", await connect(ours))
        start = Start(
            protocol=PROTOCOL,
            index=index,
            workers=2,
            name=f"w{index}",
            pseudonym="nproxy-1",
            settings=settings(upstream.url, parallel),
            log_level="warning",
            engine_socket=None,
            **more,
        )
        told.tell(start)
        told.tell(Admission(to_bytes(RoomAgain())))  # as all are told, also those that still start
        async with asyncio.timeout(60), beside(told.hear()):
            working = asyncio.create_task(work(listener, theirs))
            try:
                await until(lambda: working.done() or any(isinstance(message, Ready) for message in told.said))
                assert configured == [("warning", "json")]
                yield told
            finally:
                told.tell(Drain("end", 0.0))
                await working


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(Behaviour()) as server:
        yield server


async def test_after_a_reload_it_still_takes_its_share_of_parallel_only(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    upstream.behaviour = held = Behaviour(hold_after=1)
    async with first_of_two(monkeypatch, upstream) as told:
        told.tell(Reconfigure(settings(upstream.url, parallel=4)))
        await told.upstream()  # it answers when it has the settings
        asked = [asyncio.create_task(told.ask()) for _ in range(4)]

        async def two_wait() -> bool:
            return bool((await told.upstream())["legs_waiting"] == 2) and len(upstream.open_calls) == 2

        await until(two_wait)
        held.go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert upstream.most_at_once == 2


async def test_it_leaves_its_predecessor_the_places_that_this_one_used_when_it_began(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    used = LegsOfLeaving("before", {"u": {upstream.url: 1}})
    async with first_of_two(monkeypatch, upstream, predecessors=(used,)) as told:
        asked = asyncio.create_task(told.ask())

        async def waits() -> bool:
            return bool((await told.upstream())["legs_waiting"] == 1)

        await until(waits)
        assert upstream.calls == []
        told.tell(LegsOfLeaving("before", {}))
        assert (await asked).status_code == 200


async def test_it_has_the_name_of_the_whole_gateway_by_which_a_loop_is_found(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    async with first_of_two(monkeypatch, upstream) as told:
        await told.ask()
    assert "nproxy-1" in upstream.calls[0].headers["via"]


async def test_it_begins_with_what_others_have_learned(monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream) -> None:
    async with first_of_two(monkeypatch, upstream, lessons=(LESSON,)) as told:
        assert (await told.upstream())["learned"]
    async with first_of_two(monkeypatch, upstream) as told:
        assert not (await told.upstream())["learned"]


async def test_it_passes_over_lessons_that_only_another_version_knows(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    unknown = Taught("u", MODEL, ("OfTomorrow", {}))
    async with first_of_two(monkeypatch, upstream, lessons=(unknown,)) as told:
        told.tell(unknown)
        told.tell(LESSON)

        async def knows() -> bool:
            return bool((await told.upstream())["learned"])

        await until(knows)


async def test_it_reminds_the_others_and_reports_less_often_than_it_beats(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    reminded = asyncio.Event()
    monkeypatch.setattr(Upstreams, "remind", lambda _: reminded.set())
    monkeypatch.setattr(worker, "BEAT_SECONDS", 0.001)
    async with first_of_two(monkeypatch, upstream) as told:
        await reminded.wait()
        await until(lambda: Beat(None) in told.said)


async def test_it_has_no_metrics_if_its_parent_has_none(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    async with first_of_two(monkeypatch, upstream) as told, plain_client(timeout=30) as client:
        asking = asyncio.create_task(client.get(f"{told.url}/metrics"))
        await until(lambda: any(isinstance(message, Query) for message in told.said))
        (query,) = (message for message in told.said if isinstance(message, Query))
        told.tell(Result(query.number, None))
        assert (await asking).status_code == 503
        monkeypatch.setattr(worker, "ASK_SECONDS", 0.001)
        assert (await client.get(f"{told.url}/metrics")).status_code == 503


def test_who_asks_while_a_worker_hangs_is_answered_with_what_the_others_say() -> None:
    """The parent gives that worker up, asks it again for those who came meanwhile, and needs time for the answer."""
    assert 2 * max(parent.ASK_SECONDS, supervisor.REPORT_SECONDS) + 2 <= worker.ASK_SECONDS


async def test_it_tells_nothing_of_the_others_once_its_channel_is_closed() -> None:
    with pytest.raises(ApiError) as raised:
        await worker._AskedOfParent(Channel()).status()
    assert raised.value.status == 503


async def test_neither_a_further_sigterm_nor_its_parent_gives_it_more_time(
    monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    clock, given = SimpleNamespace(now=1000.0), list[float]()

    async def drain(_: object, seconds: float) -> None:
        given.append(seconds)
        if seconds:
            await asyncio.Event().wait()

    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(worker, "drain", drain)
    async with first_of_two(monkeypatch, upstream) as told:
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: Leave() in told.said)
        assert given == []
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(given) == 1)
        clock.now += 2
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: len(given) == 2)
        told.tell(Drain("end", 3600.0))
        await until(lambda: len(given) == 3)
    assert given == [given[0], given[0] - 2, given[0] - 2, 0.0]


@pytest.mark.parametrize("index", [0, 1])
async def test_only_the_first_looks_whether_upstreams_answer(
    index: int, monkeypatch: pytest.MonkeyPatch, upstream: FakeUpstream
) -> None:
    looked = list[object]()

    async def look(app: object) -> None:
        looked.append(app)

    monkeypatch.setattr(worker, "look_for_upstreams", look)
    async with first_of_two(monkeypatch, upstream, index=index):
        assert len(looked) == (index == 0)
