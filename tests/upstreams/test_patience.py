"""How long a request waits while nothing of it is answered."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.patience import AGAIN_SECONDS
from tests.upstreams.full_server import play
from tests.upstreams.parts import Parts


def test_when_it_is_over_the_leg_probes() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        waiter = parts.wait(group)
        assert parts.patience.left(group) == 10.0
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
        await asyncio.wait_for(waiter.future, AGAIN_SECONDS)

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
        assert parts.patience.left(group) == pytest.approx(4.0)
        again = parts.wait(group)
        await again.future
        assert parts.now == pytest.approx(10.0)

    play(scene)


def test_none_is_counted_of_a_request_that_does_not_wait() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        assert parts.patience.left(group) == 10.0
        waiter = parts.wait(group)
        parts.patience.end(waiter)
        parts.patience.renew(waiter.stats, parts.loop.time())
        await asyncio.sleep(60.0)
        assert parts.patience.left(group) == 10.0
        assert waiter in parts.waiting, "its timer was cancelled"

    play(scene)
