"""Whom the client turns away: at the door, for want of a place, for its memory's sake, or as it closes (N3, N5)."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from nproxy.gateway.admission import client
from nproxy.gateway.callers import Caller
from nproxy.openai.errors import ApiError
from tests.gateway.admission.scene import ANN, BOB, Begin, Visitor, held, refusal


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
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.client, BOB, 2)
    await scene.settled()
    full = await refusal(scene, 2, BOB)
    assert (full.status, full.code) == (429, "overloaded")
    assert scene.metric("nproxy_requests_refused_total", reason="queue_full") == 1
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="refused") == 1
    await first.left()
    await waits.left()


async def test_the_door_is_shut_for_whom_the_queue_is_full_until_there_is_room(begin: Begin) -> None:
    scene = begin(inflight_choices=2, queue_choices=1)
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.client, ANN, 1)
    await scene.settled()
    with scene.client.guard(ANN):
        pass
    await refusal(scene)
    with pytest.raises(ApiError) as shut, scene.client.guard(ANN):
        pass
    assert shut.value.status == 429
    assert "retry-after" in shut.value.headers
    assert scene.metric("nproxy_queue_wait_seconds_count", outcome="refused") == 2
    with scene.client.guard(BOB):
        pass
    await first.left()
    await waits.left()
    await scene.settled()
    with scene.client.guard(ANN):
        pass


async def test_no_more_keys_are_remembered_to_be_shut_out_than_the_ledger_has(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_KEYS", 2)
    scene = begin(inflight_choices=2, queue_seconds=0)
    async with held(scene, 2):
        for number in range(5):
            assert (await refusal(scene, caller=Caller("", f"key {number}"))).status == 429
        assert len(scene.client._full) == 2


async def test_N3_wider_than_a_limit_is_the_clients_fault(begin: Begin) -> None:
    scene = begin(max_inflight=6, inflight_choices=10, per_key_choices=8)
    for caller, choices, limit in ((ANN, 7, 6), (Caller("c", "c", choices=3), 4, 3)):
        error = await refusal(scene, choices, caller)
        assert (error.status, error.param, error.code) == (400, "n", "integer_above_max_value")
        assert str(limit) in error.message
    assert (await refusal(scene, 9, upstream="elsewhere")).message.endswith("at most 8 are allowed.")


async def test_while_draining_who_waits_is_served_and_who_would_wait_is_not(begin: Begin) -> None:
    scene = begin(inflight_choices=2)
    first = Visitor(scene.client, ANN, 2)
    await first.inside.wait()
    waits = Visitor(scene.client, BOB, 2)
    await scene.settled()
    scene.client.draining = True
    error = await refusal(scene)
    assert (error.status, error.code) == (503, "shutting_down")
    await first.left()
    await waits.left()
    async with held(scene, 2):
        pass


async def test_memory_is_looked_at_at_the_door(begin: Begin) -> None:
    scene = begin(memory_mib=1)
    with pytest.raises(ApiError) as short, scene.client.guard(ANN):
        pass
    assert (short.value.status, short.value.code) == (503, "overloaded")
    assert "retry-after" in short.value.headers
    assert scene.metric("nproxy_shed_total", reason="memory") == 1
    assert scene.metric("nproxy_requests_refused_total", reason="memory") == 1


async def test_bodies_are_bounded_together(begin: Begin) -> None:
    scene = begin()
    scene.client.bodies.limit = 100
    with scene.client.guard(ANN) as alone:
        alone.reach(150)
        with pytest.raises(ApiError) as refused, scene.client.guard(ANN) as other:
            other.reach(1)
        assert refused.value.status == 503
    assert scene.client.bodies.held == 0
    with scene.client.guard(ANN) as one, scene.client.guard(BOB) as other:
        one.reach(50)
        other.reach(20)
        other.reach(50)
        other.reach(10)
        assert scene.client.bodies.held == 100
        for body in (one, other):
            with pytest.raises(ApiError):
                body.reach(51)
    assert scene.metric("nproxy_shed_total", reason="bodies") == 3


async def test_whoever_fills_the_room_for_bodies_leaves_as_much_to_others(begin: Begin) -> None:
    """A key that sends many bodies, slowly or not to their ends, would shut out all others."""
    scene = begin()
    bodies = scene.client.bodies
    bodies.limit = 100
    with scene.client.guard(ANN) as last, ExitStack() as many:
        hoard = [last, *(many.enter_context(scene.client.guard(ANN)) for _ in range(5))]
        for body in hoard[:5]:
            body.reach(10)
        for body in hoard:
            with pytest.raises(ApiError):
                body.reach(body.size + 1)
        with scene.client.guard(BOB) as first, ExitStack() as another:
            first.reach(20)
            second = another.enter_context(scene.client.guard(BOB))
            second.reach(5)
            for body in (first, second):
                with pytest.raises(ApiError):
                    body.reach(body.size + 1)
            another.close()
            first.reach(50)
        many.close()
        last.reach(100)
    assert bodies.held == 0


async def test_no_caller_is_remembered_for_bodies_that_are_gone(begin: Begin) -> None:
    scene = begin()
    for caller in (ANN, BOB):
        with scene.client.guard(caller) as body:
            body.reach(10)
            body.reach(20)
    assert scene.client.bodies._callers == {}
