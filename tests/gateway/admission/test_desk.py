"""The desk, with the ledger beside it and with a channel in between: nothing that is asked for stays taken."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nproxy.config import Config
from nproxy.gateway.admission import desk
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.clerk import Clerk, Deliver, owner
from nproxy.gateway.admission.desk import Desk
from nproxy.gateway.admission.messages import Message, answer_of, message_of, to_data
from nproxy.gateway.callers import Caller, Rates
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import Metrics

ANN, BOB = Caller("ann", "ann"), Caller("bob", "bob")


class Wire:
    """A desk's transport over which messages go as JSON, each a turn of the loop later."""

    prefix = "7"

    def __init__(self, deliver: Deliver, bounds: Bounds) -> None:
        self._loop = asyncio.get_running_loop()
        self.clerk = Clerk(bounds, lambda answer: self._later(deliver, answer_of, to_data(answer)))

    def _later(self, take: Callable[[Any], None], read: Callable[[Any], Any], data: Any) -> None:
        line = json.dumps(data)
        self._loop.call_soon(lambda: take(read(json.loads(line))))

    def send(self, message: Message) -> None:
        self._later(self.clerk.send, message_of, to_data(message))

    def reconfigure(self, bounds: Bounds) -> None:
        self.clerk.reconfigure(bounds)

    def close(self) -> None:
        self.clerk.close()


class Scene:
    """A desk, and the clerk that it asks in the end."""

    def __init__(self, wired: bool, limits: dict[str, Any], max_inflight: int) -> None:
        self.config = self.configured(limits, max_inflight)
        self.metrics = Metrics(version="0", upstreams=["u", "v"], models=[])
        self.desk = Desk(self.config, self.metrics)
        if wired:
            self.desk.connect(lambda deliver: Wire(deliver, Bounds.of(self.config)))
        transport: Any = self.desk._transport
        self.clerk: Clerk = transport.clerk if wired else transport

    @staticmethod
    def configured(limits: dict[str, Any], max_inflight: int = 1024) -> Config:
        upstreams = [
            {"name": name, "replicas": ["http://127.0.0.1:1/v1"], "max_inflight": max_inflight} for name in ("u", "v")
        ]
        return Config.model_validate({"upstreams": upstreams, "n_policy": {"max_n": 1}, "limits": limits})

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def stop_the_clock(self) -> None:
        """No rate works anything off from now on, however long the rest takes."""
        now = asyncio.get_running_loop().time()
        self.desk._clock = self.clerk._clock = lambda: now

    async def settled(self) -> None:
        """All messages have arrived."""
        for _ in range(10):
            await asyncio.sleep(0)


Begin = Callable[..., Scene]


@pytest.fixture(params=["beside it", "over a wire"])
async def begin(request: pytest.FixtureRequest) -> AsyncIterator[Begin]:
    """Make a desk: keywords are `limits`. In the end nothing may be taken."""
    scenes: list[Scene] = []

    def make(max_inflight: int = 1024, **limits: Any) -> Scene:
        scenes.append(Scene(request.param == "over a wire", limits, max_inflight))
        return scenes[-1]

    yield make
    for scene in scenes:
        await scene.settled()
        assert (scene.desk.taken, scene.desk.waiting) == (0, 0)
        assert (scene.clerk.ledger.taken, scene.clerk.ledger.waiting) == (0, 0)
        scene.desk.close()


class Visitor:
    """A request that holds its permits until it is told to go."""

    def __init__(self, desk: Desk, caller: Caller, choices: int, upstream: str = "u", tokens: int = 0) -> None:
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self._visit = (desk, caller, choices, upstream, tokens)
        self.task = asyncio.create_task(self._come())

    async def _come(self) -> None:
        desk, caller, choices, upstream, tokens = self._visit
        async with desk.admitted(caller, upstream, choices, tokens):
            self.inside.set()
            await self.go.wait()

    async def left(self) -> None:
        self.go.set()
        await self.task


@asynccontextmanager
async def held(scene: Scene, choices: int, caller: Caller = ANN, upstream: str = "u") -> AsyncIterator[None]:
    async with scene.desk.admitted(caller, upstream, choices):
        yield


async def refusal(scene: Scene, choices: int = 1, caller: Caller = ANN, **more: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        async with scene.desk.admitted(caller, more.pop("upstream", "u"), choices, **more):
            pytest.fail("it was let in")
    return raised.value


async def test_who_waits_is_let_in_by_who_leaves(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    first = Visitor(scene.desk, ANN, 3)
    await first.inside.wait()
    second = Visitor(scene.desk, BOB, 2)
    await scene.settled()
    assert (scene.desk.taken, scene.desk.waiting, second.inside.is_set()) == (3, 2, False)
    await first.left()
    await second.inside.wait()
    await second.left()
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="admitted") == 2
    assert scene.metric("nproxy_key_requests_total", key="bob") == 1


async def test_L3_who_leaves_while_he_waits_takes_nothing(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    async with held(scene, 4):
        second = Visitor(scene.desk, BOB, 2)
        await scene.settled()
        second.task.cancel()
        await asyncio.gather(second.task, return_exceptions=True)
        await scene.settled()
        assert scene.clerk.ledger.waiting == 0
    assert not second.inside.is_set()
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="left") == 1


async def test_who_leaves_in_the_moment_he_is_let_in_gives_it_back(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    first = Visitor(scene.desk, ANN, 4)
    await first.inside.wait()
    second, third = Visitor(scene.desk, BOB, 4), Visitor(scene.desk, BOB, 4)
    await scene.settled()
    first.go.set()
    while scene.clerk.ledger.waiting == 8:
        await asyncio.sleep(0)
    second.task.cancel()
    await asyncio.gather(first.task, second.task, return_exceptions=True)
    await third.inside.wait()
    assert not second.inside.is_set()
    await third.left()


class Silent(Wire):
    """The ledger's process stands still: it takes everything and answers nothing until `wake`."""

    def __init__(self, deliver: Deliver, bounds: Bounds) -> None:
        super().__init__(deliver, bounds)
        self.unread: list[Message] | None = []

    def send(self, message: Message) -> None:
        if self.unread is None:
            super().send(message)
        else:
            self.unread.append(message)

    def wake(self) -> None:
        unread, self.unread = self.unread or [], None
        for message in unread:
            self.send(message)


async def test_a_ledger_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "ANSWER_SECONDS", 0.05)
    scene = Scene(wired=False, limits={"queue_seconds": 0}, max_inflight=1024)
    wires: list[Silent] = []

    def connect(deliver: Deliver) -> Silent:
        wires.append(Silent(deliver, Bounds.of(scene.config)))
        return wires[0]

    scene.desk.connect(connect)
    error = await refusal(scene, 2)
    assert (error.status, error.code) == (503, "not_ready")
    assert scene.metric("nproxy_requests_refused_total", reason="unanswered") == 1
    assert (scene.desk.taken, scene.desk.waiting) == (0, 0)
    wires[0].wake()
    await scene.settled()
    assert wires[0].clerk.ledger.taken == 0, "it was told that nobody waits any more"
    async with held(scene, 2):
        assert scene.desk.taken == 2
    await scene.settled()
    scene.desk.close()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_to_cancellation_at_any_moment(begin: Begin, seed: int) -> None:
    scene = begin(inflight_choices=6, max_inflight=4, queue_seconds=5)
    draw = random.Random(seed)
    visitors: list[Visitor] = []
    for _ in range(200):
        caller, upstream = draw.choice([ANN, BOB]), draw.choice("uv")
        visitors.append(Visitor(scene.desk, caller, draw.randint(1, 4), upstream))
        for _ in range(draw.randint(0, 3)):
            await asyncio.sleep(0)
        visitor = draw.choice(visitors)
        if draw.random() < 0.5:
            visitor.task.cancel()
        else:
            visitor.go.set()
        assert scene.clerk.ledger.taken <= 6
    for visitor in visitors:
        visitor.go.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)


async def test_N5_too_long(begin: Begin) -> None:
    scene = begin(inflight_choices=2, queue_seconds=0.05)
    async with held(scene, 2):
        late = await refusal(scene)
    assert (late.status, late.code) == (429, "overloaded")
    assert 1 <= int(late.headers["retry-after"]) <= 60
    assert int(late.headers["retry-after-ms"]) >= 1000
    assert scene.metric("nproxy_requests_refused_total", reason="timeout") == 1
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="timeout") == 1


async def test_N5_too_full(begin: Begin) -> None:
    scene = begin(inflight_choices=2, queue_choices=2, queue_seconds=600)
    first = Visitor(scene.desk, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.desk, BOB, 2)
    await scene.settled()
    full = await refusal(scene, 2, BOB)
    assert (full.status, full.code) == (429, "overloaded")
    assert scene.metric("nproxy_requests_refused_total", reason="queue_full") == 1
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="refused") == 1
    await first.left()
    await waits.left()


async def test_the_door_is_shut_for_whom_the_queue_is_full_until_there_is_room(begin: Begin) -> None:
    scene = begin(inflight_choices=2, queue_choices=1)
    first = Visitor(scene.desk, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.desk, ANN, 1)
    await scene.settled()
    with scene.desk.door(ANN):
        pass
    await refusal(scene)
    with pytest.raises(ApiError) as shut, scene.desk.door(ANN):
        pass
    assert shut.value.status == 429
    assert "retry-after" in shut.value.headers
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="refused") == 2
    with scene.desk.door(BOB):
        pass
    await first.left()
    await waits.left()
    await scene.settled()
    with scene.desk.door(ANN):
        pass


async def test_N3_wider_than_a_limit_is_the_clients_fault(begin: Begin) -> None:
    scene = begin(max_inflight=6, inflight_choices=10, per_key_choices=8)
    for caller, choices, limit in ((ANN, 7, 6), (Caller("c", "c", choices=3), 4, 3)):
        error = await refusal(scene, choices, caller)
        assert (error.status, error.param, error.code) == (400, "n", "integer_above_max_value")
        assert str(limit) in error.message
    assert (await refusal(scene, 9, upstream="elsewhere")).message.endswith("at most 8 are served.")


async def test_while_draining_who_waits_is_served_and_who_would_wait_is_not(begin: Begin) -> None:
    scene = begin(inflight_choices=2)
    first = Visitor(scene.desk, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.desk, BOB, 2)
    await scene.settled()
    scene.desk.draining = True
    error = await refusal(scene)
    assert (error.status, error.code) == (503, "shutting_down")
    await first.left()
    await waits.left()
    async with held(scene, 2):
        pass


async def test_rates_and_their_headers(begin: Begin) -> None:
    scene = begin(requests_per_minute=2, tokens_per_minute=6000)
    scene.stop_the_clock()
    own = Caller("own", "own", rates=Rates(requests=1000, choices=10))
    assert scene.desk.headers(ANN)["x-ratelimit-remaining-requests"] == "2"
    assert scene.desk.headers(Caller("", "")) == {}, "who is not known has no rates"
    async with scene.desk.admitted(ANN, "u", 1, tokens=1000) as grant:
        assert scene.desk.headers(ANN)["x-ratelimit-remaining-tokens"] == "5000"
        grant.spend(10, 90)
        grant.spend(1, 99)
    async with held(scene, 1):
        headers = scene.desk.headers(ANN)
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-remaining-tokens"] == "5800"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    error = await refusal(scene)
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert error.headers["retry-after"] == "30"
    assert scene.metric("nproxy_key_limited_total", key="ann", what="requests") == 1
    assert scene.metric("nproxy_key_tokens_total", key="ann", type="completion") == 189
    with pytest.raises(ApiError) as shut, scene.desk.door(ANN):
        pass
    assert shut.value.code == "rate_limit_exceeded", "it need not be asked for its body"
    async with held(scene, 7, own):
        assert scene.desk.headers(own)["x-ratelimit-remaining-choices"] == "3"
        assert scene.desk.headers(own)["x-ratelimit-limit-requests"] == "1000"
    assert (await refusal(scene, 7, own)).code == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("guess", "came", "told", "remaining"),
    [(1000, 900, None, "5000"), (1000, 2500, None, "3500"), (1000, 2500, 10, "5990"), (9000, 7000, None, "0")],
)
async def test_what_came_counts_where_it_is_more_than_the_guess_and_nobody_told(
    begin: Begin, guess: int, came: int, told: int | None, remaining: str
) -> None:
    scene = begin(tokens_per_minute=6000)
    scene.stop_the_clock()
    async with scene.desk.admitted(ANN, "u", 1, tokens=guess) as grant:
        grant.came(200)
        grant.came(came - 200)
        if told is not None:
            grant.spend(told, 0)
    await scene.settled()
    if came > 6000:
        assert (await refusal(scene)).headers["retry-after"] == "10", "1,000 more than a minute's worth"
    else:
        async with held(scene, 1):
            assert scene.desk.headers(ANN)["x-ratelimit-remaining-tokens"] == remaining


@pytest.mark.parametrize(("tokens", "remaining"), [(None, "5000"), (0, "6000"), (7000, "0")])
async def test_a_guess_stands_unless_somebody_told(begin: Begin, tokens: int | None, remaining: str) -> None:
    scene = begin(tokens_per_minute=6000)
    scene.stop_the_clock()
    async with scene.desk.admitted(ANN, "u", 1, tokens=1000) as grant:
        if tokens == 0:
            grant.nothing_came()
        elif tokens:
            grant.spend(tokens, 0)
            grant.nothing_came()
    await scene.settled()
    if tokens == 7000:
        assert (await refusal(scene)).code == "rate_limit_exceeded"
    else:
        async with held(scene, 1):
            pass
    assert scene.desk.headers(ANN)["x-ratelimit-remaining-tokens"] == remaining


async def test_permits_move_with_their_request(begin: Begin) -> None:
    scene = begin(max_inflight=2)
    blocks = Visitor(scene.desk, BOB, 2, "v")
    await blocks.inside.wait()
    async with scene.desk.admitted(ANN, "u", 2) as grant:
        moving = asyncio.create_task(grant.move("v"))
        await scene.settled()
        assert not moving.done()
        async with held(scene, 2, BOB, "u"):
            await blocks.left()
            await moving
        await scene.settled()
        assert scene.clerk.ledger.taken == 2


async def test_a_move_that_is_given_up(begin: Begin) -> None:
    scene = begin(max_inflight=2, queue_seconds=0.05)
    async with held(scene, 2, BOB, "v"), scene.desk.admitted(ANN, "u", 2) as grant:
        with pytest.raises(ApiError) as late:
            await grant.move("v")
        assert late.value.status == 429
        moving = asyncio.create_task(grant.move("v"))
        await scene.settled()
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)


async def test_other_limits_while_it_runs(begin: Begin) -> None:
    scene = begin(inflight_choices=2, per_key_choices=2)
    first = Visitor(scene.desk, ANN, 2)
    await first.inside.wait()
    second = Visitor(scene.desk, BOB, 2)
    await scene.settled()
    scene.desk.reconfigure(scene.configured({"inflight_choices": 4, "per_key_choices": 3}))
    await second.inside.wait()
    assert (await refusal(scene, 4)).status == 400
    await first.left()
    await second.left()


async def test_a_lost_desk_has_left_with_all_it_had(begin: Begin) -> None:
    scene = begin(inflight_choices=2)
    visitors = deque(Visitor(scene.desk, ANN, 1) for _ in range(4))
    await visitors[1].inside.wait()
    assert {owner(ticket) for ticket in scene.clerk.ledger._claims} == {scene.desk._transport.prefix}
    scene.clerk.lost(scene.desk._transport.prefix)
    assert (scene.clerk.ledger.taken, scene.clerk.ledger.waiting) == (0, 0)
    for visitor in visitors:
        visitor.task.cancel()
    await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)


async def test_memory_is_looked_at_at_the_door(begin: Begin) -> None:
    scene = begin(memory_mib=1)
    with pytest.raises(ApiError) as short, scene.desk.door(ANN):
        pass
    assert (short.value.status, short.value.code) == (503, "overloaded")
    assert "retry-after" in short.value.headers
    assert scene.metric("nproxy_shed_total", reason="memory") == 1
    assert scene.metric("nproxy_requests_refused_total", reason="memory") == 1


async def test_bodies_are_bounded_together(begin: Begin) -> None:
    scene = begin()
    scene.desk.bodies.limit = 100
    with scene.desk.door(ANN) as alone:
        alone.reach(150)
        with pytest.raises(ApiError) as refused, scene.desk.door(ANN) as other:
            other.reach(1)
        assert refused.value.status == 503
    assert scene.desk.bodies.held == 0
    with scene.desk.door(ANN) as one, scene.desk.door(BOB) as other:
        one.reach(50)
        other.reach(20)
        other.reach(50)
        other.reach(10)
        assert scene.desk.bodies.held == 100
    assert scene.metric("nproxy_shed_total", reason="bodies") == 1
