"""When a probe is made, and what puts it off."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.overload.probe_pace import FIRST_PAUSE_SECONDS, IDLE_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


async def probed_at(parts: Parts) -> float:
    """When the next leg is admitted."""
    waiter = parts.wait()
    parts.seconds = 600.0
    await waiter.future
    assert waiter.attempt.admitted_by == "probe"
    return parts.now


def test_the_first_probe_is_made_after_a_pause() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.calling()
        parts.probes.schedule()
        assert await probed_at(parts) == pytest.approx(FIRST_PAUSE_SECONDS)
        assert parts.probes.scheduled, "and the next one after another"

    play(scene)


def test_none_is_made_before_a_retry_after() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.calling()
        parts.probes.schedule()
        parts.full.note_full(parts.replica, parts.loop.time(), 3.0)
        assert await probed_at(parts) == pytest.approx(3.0)

    play(scene)


def test_it_does_not_take_a_slot_that_is_about_to_be_given_back() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.probes.delayed_slots = 1
        parts.probes.schedule()
        waiter = parts.wait()
        await asyncio.sleep(4 * FIRST_PAUSE_SECONDS)
        assert waiter in parts.waiting and parts.probes.scheduled
        parts.calling()
        await asyncio.wait_for(waiter.future, IDLE_PAUSE_SECONDS + FIRST_PAUSE_SECONDS)

    play(scene)


def test_accounts_that_may_share_capacity_share_the_probes() -> None:
    async def scene() -> None:
        parts = Parts()
        others = [Parts(parts.shared) for _ in range(3)]
        waiter = parts.wait()
        for other in others[:2]:
            other.wait()
        parts.calling()
        parts.probes.schedule()
        await waiter.future
        assert parts.now == pytest.approx(3 * FIRST_PAUSE_SECONDS)

    play(scene)


def test_a_probe_comes_at_once_when_capacity_may_have_grown() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.calling()
        for _ in range(6):
            parts.probes.pace.note_full(probe=True)
        parts.probes.schedule()
        parts.probes.hurry()
        assert await probed_at(parts) == pytest.approx(SHORTEST_PAUSE_SECONDS)

    play(scene)


def test_who_waits_beside_nothing_in_flight_is_sure_to_probe() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.probes.ensure()
        assert not parts.probes.scheduled, "nobody waits"
        attempt = parts.calling()
        parts.wait()
        parts.probes.ensure()
        assert not parts.probes.scheduled, "the end of the call will admit the leg"
        parts.calls.end(attempt)
        parts.probes.ensure()
        assert parts.probes.scheduled
        parts.probes.cancel()
        assert not parts.probes.scheduled

    play(scene)
