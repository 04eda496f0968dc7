"""The client: nothing that is asked for stays taken, whenever who asked leaves, moves or is lost."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from nproxy.gateway.admission import client
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Message, Refused
from nproxy.gateway.admission.server import AdmissionServer, Deliver, owner
from nproxy.openai.errors import ApiError
from tests.gateway.admission.scene import ANN, BOB, Begin, Scene, Visitor, Wire, held, refusal


async def test_who_waits_is_let_in_by_who_leaves(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    began = asyncio.get_running_loop().time()
    first = Visitor(scene.client, ANN, 3)
    await first.inside.wait()
    second = Visitor(scene.client, BOB, 2)
    await scene.settled()
    assert (scene.client.taken, scene.client.waiting, second.inside.is_set()) == (3, 2, False)
    await first.left()
    await second.inside.wait()
    await second.left()
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="admitted") == 2
    since = asyncio.get_running_loop().time() - began
    assert 0 <= scene.metric("nproxy_queue_wait_seconds_sum", outcome="admitted") <= since
    assert scene.metric("nproxy_key_requests_total", key="bob") == 1


async def test_L3_who_leaves_while_he_waits_takes_nothing(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    async with held(scene, 4):
        second = Visitor(scene.client, BOB, 2)
        await scene.settled()
        second.task.cancel()
        await asyncio.gather(second.task, return_exceptions=True)
        await scene.settled()
        assert scene.server.ledger.waiting == 0
    assert not second.inside.is_set()
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="left") == 1


async def test_who_leaves_in_the_moment_he_is_let_in_gives_it_back(begin: Begin) -> None:
    scene = begin(inflight_choices=4)
    first = Visitor(scene.client, ANN, 4)
    await first.inside.wait()
    second, third = Visitor(scene.client, BOB, 4), Visitor(scene.client, BOB, 4)
    await scene.settled()
    first.go.set()
    while scene.server.ledger.waiting == 8:
        await asyncio.sleep(0)
    second.task.cancel()
    await asyncio.gather(first.task, second.task, return_exceptions=True)
    await third.inside.wait()
    assert not second.inside.is_set()
    await third.left()


async def test_who_has_waited_too_long_already_by_a_new_limit() -> None:
    """And others ask before they are told."""
    answers: list[Answer] = []
    server = AdmissionServer(Bounds(1, 8, 60.0), answers.append)
    for ticket in ("here-1", "here-2"):
        server.send(Ask(ticket, "ann", "u", 1))
    await asyncio.sleep(0.01)
    server.reconfigure(Bounds(1, 8, 0.005))
    server.send(Ask("here-3", "bob", "u", 1))
    async with asyncio.timeout(5):
        while len(answers) < 3:
            await asyncio.sleep(0.001)
    assert [type(answer) for answer in answers] == [Admitted, Refused, Refused]
    server.close()


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
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    scene = Scene(wired=False, limits={"queue_seconds": 0}, max_inflight=1024)
    wires: list[Silent] = []

    def connect(deliver: Deliver) -> Silent:
        wires.append(Silent(deliver, Bounds.of(scene.config)))
        return wires[0]

    scene.client.connect(connect)
    error = await refusal(scene, 2)
    assert (error.status, error.code) == (503, "not_ready")
    assert scene.metric("nproxy_requests_refused_total", reason="unanswered") == 1
    assert (scene.client.taken, scene.client.waiting) == (0, 0)
    wires[0].wake()
    await scene.settled()
    assert wires[0].server.ledger.taken == 0, "it was told that nobody waits any more"
    async with held(scene, 2):
        assert scene.client.taken == 2
    await scene.settled()
    scene.client.close()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_to_cancellation_at_any_moment(begin: Begin, seed: int) -> None:
    scene = begin(inflight_choices=6, max_inflight=4, queue_seconds=5)
    draw = random.Random(seed)
    visitors: list[Visitor] = []
    for _ in range(200):
        caller, upstream = draw.choice([ANN, BOB]), draw.choice("uv")
        visitors.append(Visitor(scene.client, caller, draw.randint(1, 4), upstream))
        for _ in range(draw.randint(0, 3)):
            await asyncio.sleep(0)
        visitor = draw.choice(visitors)
        if draw.random() < 0.5:
            visitor.task.cancel()
        else:
            visitor.go.set()
        assert scene.server.ledger.taken <= 6
    for visitor in visitors:
        visitor.go.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)


async def test_permits_move_with_their_request(begin: Begin) -> None:
    scene = begin(max_inflight=2)
    blocks = Visitor(scene.client, BOB, 2, "v")
    await blocks.inside.wait()
    with await scene.client.admit(ANN, "u", 2) as grant:
        moving = asyncio.create_task(grant.move("v"))
        await scene.settled()
        assert not moving.done()
        async with held(scene, 2, BOB, "u"):
            await blocks.left()
            await moving
        await scene.settled()
        assert scene.server.ledger.taken == 2


async def test_a_move_that_is_given_up(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    scene = begin(max_inflight=2, queue_seconds=0.05)
    async with held(scene, 2, BOB, "v"):
        with await scene.client.admit(ANN, "u", 2) as grant:
            with pytest.raises(ApiError) as late:
                await grant.move("v")
            assert late.value.status == 429
            await scene.settled()
            assert scene.metric("nproxy_requests_refused_total", reason="timeout") == 0, "it is told of another failure"
            assert "requests are refused" not in caplog.messages
            moving = asyncio.create_task(grant.move("v"))
            await scene.settled()
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)


async def test_other_limits_while_it_runs(begin: Begin) -> None:
    scene = begin(inflight_choices=2, per_key_choices=2)
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    second = Visitor(scene.client, BOB, 2)
    await scene.settled()
    scene.client.reconfigure(scene.configured({"inflight_choices": 4, "per_key_choices": 3}))
    await second.inside.wait()
    assert (await refusal(scene, 4)).status == 400
    await first.left()
    await second.left()


async def test_who_waits_when_the_wait_is_made_longer_waits_on(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    scene = begin(inflight_choices=2, queue_seconds=0.1)
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    second = Visitor(scene.client, BOB, 2)
    await scene.settled()
    longer = scene.configured({"inflight_choices": 2, "queue_seconds": 60})
    scene.client.reconfigure(longer)
    await asyncio.sleep(0.3)
    assert not second.task.done()
    await first.left()
    await second.inside.wait()
    await second.left()


async def test_each_of_those_who_wait_is_refused_in_his_time_which_may_be_made_shorter(begin: Begin) -> None:
    scene = begin(inflight_choices=2, queue_seconds=60)
    async with held(scene, 2):
        early = Visitor(scene.client, BOB, 2)
        await scene.settled()
        scene.client.reconfigure(scene.configured({"inflight_choices": 2, "queue_seconds": 0.2}))
        await asyncio.sleep(0.1)
        late = Visitor(scene.client, BOB, 2)
        async with asyncio.timeout(3):
            refused = await asyncio.gather(early.task, late.task, return_exceptions=True)
    assert [error.code for error in refused if isinstance(error, ApiError)] == ["overloaded"] * 2


async def test_a_lost_desk_takes_nothing_of_one_whose_name_begins_alike() -> None:
    server = AdmissionServer(Bounds(8, 8, 1.0), lambda _: None)
    for ticket in ("1-1", "10-1"):
        server.send(Ask(ticket, "ann", "u", 2))
    server.lost("1")
    assert server.ledger.taken == 2
    server.lost("10")
    assert server.ledger.taken == 0


class Unhurried(Wire):
    """The ledger's process has not heard yet of other limits."""

    def reconfigure(self, bounds: Bounds) -> None:
        pass


async def test_who_waits_when_the_wait_is_made_shorter_waits_as_long_as_the_ledger_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    scene = Scene(False, {"inflight_choices": 2, "queue_seconds": 60}, 1024)
    scene.client.connect(lambda deliver: Unhurried(deliver, Bounds.of(scene.config)))
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    second = Visitor(scene.client, BOB, 2)
    await scene.settled()
    scene.client.reconfigure(scene.configured({"inflight_choices": 2, "queue_seconds": 0}))
    await asyncio.sleep(0.2)
    assert not second.task.done()
    await first.left()
    await second.inside.wait()
    await second.left()
    scene.client.close()


async def test_a_lost_desk_has_left_with_all_it_had(begin: Begin) -> None:
    scene = begin(inflight_choices=2)
    visitors = deque(Visitor(scene.client, ANN, 1) for _ in range(4))
    await visitors[1].inside.wait()
    assert {owner(ticket) for ticket in scene.server.ledger._claims} == {scene.client._transport.prefix}
    scene.server.lost(scene.client._transport.prefix)
    assert (scene.server.ledger.taken, scene.server.ledger.waiting) == (0, 0)
    for visitor in visitors:
        visitor.task.cancel()
    await asyncio.gather(*(visitor.task for visitor in visitors), return_exceptions=True)
