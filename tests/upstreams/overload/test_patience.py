"""How long a request waits while nothing of it is answered."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.patience import AGAIN_SECONDS, NEXT_SECONDS
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


def test_when_it_is_over_the_leg_probes() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiter = parts.wait(group)
        assert parts.patience.seconds_left(group) == 10.0
        await waiter.future
        assert (parts.now, waiter.attempt.admitted_by) == (10.0, "probe")

    play(scene)


def test_no_leg_probes_while_another_of_its_request_is_in_flight() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        group.at[0] = parts.replica
        waiter = parts.wait(group, 1)
        await asyncio.sleep(30.0)
        assert waiter in parts.waiting
        del group.at[0]
        await asyncio.wait_for(waiter.future, AGAIN_SECONDS + 0.1)

    play(scene)


def test_one_leg_of_a_request_probes_though_all_are_out_of_patience_in_the_same_turn() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiters = [parts.wait(group, leg) for leg in range(8)]
        await asyncio.sleep(10.0 + AGAIN_SECONDS / 2)
        assert [waiter.attempt.admitted_by for waiter in waiters] == ["probe", *[""] * 7]

    play(scene)


def test_when_one_leg_is_told_the_next_one_probes_soon() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiters = [parts.wait(group, leg) for leg in range(3)]
        for told, waiter in enumerate(waiters):
            await waiter.future
            assert parts.now == pytest.approx(10.0 + told * NEXT_SECONDS)
            parts.patience.end(waiter)
            parts.patience.told(group)

    play(scene)


def test_one_leg_is_told_for_another_reason_and_the_others_go_on_waiting() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiter = parts.wait(group)
        await asyncio.sleep(5.0)
        parts.patience.told(group)
        await waiter.future
        assert parts.now == 10.0

    play(scene)


def test_it_begins_anew_when_a_call_of_the_request_was_not_refused() -> None:
    async def scene() -> None:
        parts = Parts()
        waiter = parts.wait()
        await asyncio.sleep(6.0)
        parts.patience.renew(waiter.stats, parts.loop.time())
        await waiter.future
        assert parts.now == pytest.approx(16.0)

    play(scene)


def test_a_leg_that_waits_again_has_what_is_left() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiter = parts.wait(group)
        await asyncio.sleep(6.0)
        parts.admission.admit(waiter, "probe")
        parts.patience.end(waiter)
        assert parts.patience.seconds_left(group) == pytest.approx(4.0)
        again = parts.wait(group)
        await again.future
        assert parts.now == pytest.approx(10.0)

    play(scene)


def test_none_is_counted_of_a_request_that_does_not_wait() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        assert parts.patience.seconds_left(group) == 10.0
        waiter = parts.wait(group)
        parts.patience.end(waiter)
        parts.patience.renew(waiter.stats, parts.loop.time())
        await asyncio.sleep(60.0)
        assert parts.patience.seconds_left(group) == 10.0
        assert waiter in parts.waiting, "its timer was cancelled"

    play(scene)
