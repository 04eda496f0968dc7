"""A full server whose room is free later than its answers end: when the next one comes; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload import freed_slots
from nproxy.upstreams.overload.prospects import JUST_NOW_SECONDS
from nproxy.upstreams.overload.release_delay import LONGEST_DELAY, RELEASE_DELAYS
from tests.upstreams.held import held
from tests.upstreams.overload.full_server import ACCOUNT, Refused, Server, play


@pytest.mark.parametrize(("late", "waits"), [(0.002, 0.005), (0.02, 0.025), (0.09, 0.1), (0.2, 0.25)])
def test_room_that_is_given_back_late_is_asked_for_as_late(late: float, waits: float) -> None:
    async def scene() -> None:
        server = Server(1, 0.1, late=late)
        whole = await server.request(64)
        assert whole == pytest.approx(64 * (0.1 + waits), rel=0.1)
        assert len(server.refusals) <= 63 + (32 if late < 0.2 else 64), "once each as it comes, and now and then"

    play(scene)


def test_where_the_server_asks_for_a_wait_at_such_a_moment_the_next_end_is_waited_behind() -> None:
    async def scene() -> None:
        server = Server(1, 0.1, late=0.02, wait=1.0)
        assert await server.request(64) < 64 * 0.125 + 1.0 * (2 + 64 / 8)
        assert len(server.refusals) <= 63 + 32

    play(scene)


@pytest.mark.parametrize(("room", "clients", "n"), [(8, 16, 1), (8, 4, 8), (32, 64, 1)])
@pytest.mark.parametrize(("late", "wait"), [(0.02, 5.0), (0.05, 10.0), (0.02, 1.0)])
def test_a_wish_for_a_pause_at_such_a_moment_keeps_nobody_from_the_next_end(
    room: int, clients: int, n: int, late: float, wait: float
) -> None:
    """Two that come too soon behind one end are no proof that there is no room: others will end, too."""

    async def scene() -> None:
        server = Server(room, late=late, wait=wait)
        rounds, ends = 32, []

        async def client(number: int) -> None:
            for turn in range(rounds):
                await server.request(n, seconds=0.35 + 0.3 * ((number * 7 + turn * 5) % 11) / 11)
            ends.append(server.now)

        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(number))
        assert max(ends) < clients * n * rounds * (0.5 + late) / room * 1.3 + wait

    play(scene)


def test_room_that_is_given_back_at_once_again_is_taken_at_once_again() -> None:
    async def scene() -> None:
        server = Server(1, 0.1, late=0.2)
        await server.request(16)
        server.late, since = 0.0, server.now
        await server.request(64)
        assert server.now - since < 64 * 0.1 + 8 * sum(RELEASE_DELAYS) + 0.5

    play(scene)


@pytest.mark.parametrize(("beside", "answered"), [(True, 1.85 + 1.0), (False, 1.0 + 5.0 + 1.0)])
def test_a_probe_waits_for_a_slot_that_is_about_to_be_used_only_where_no_call_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, beside: bool, answered: float
) -> None:
    """Otherwise slots that are freed one after the other, and late, would keep it from finding more room."""
    monkeypatch.setattr(freed_slots, "RELEASE_DELAYS", (5.0,) * len(RELEASE_DELAYS))

    async def scene() -> None:
        server = Server(2 if beside else 1)
        server.gate.queues.shared.release_delay(server.gate.replicas[0]).delay = LONGEST_DELAY
        long = asyncio.create_task(server.request(1 if beside else 0, seconds=60.0))
        first = asyncio.create_task(server.request(1))
        assert await server.request(1, at=0.1) == pytest.approx(answered, abs=0.1)
        assert first.done()
        long.cancel()

    play(scene)


def test_a_request_that_was_answered_in_part_waits_for_others_alone() -> None:
    """Nobody of its account is in flight, and yet there is no room, for a while."""

    async def scene() -> None:
        server = Server(1, 0.5)

        def taken(seconds: float) -> None:
            server.inside["r0"] += 1
            server.loop.call_later(seconds, server._give_back, "r0")

        server.loop.call_later(0.49, taken, 5.0)
        assert await server.request(3) == pytest.approx(5.49 + 1.0, abs=1.6)
        assert len(server.refusals) < 2 + 5 / 0.25 + 8
        server.loop.call_later(0.49, taken, 60.0)
        with pytest.raises(Refused) as refused:
            await server.request(3)
        assert refused.value.args[0] < 5.49 + 1.0 + 1.6 + 12

    play(scene)


def test_a_sibling_that_has_just_ended_still_counts_as_one() -> None:
    """Its room may be given back late: what was answered is not thrown away for another upstream at once."""

    async def scene() -> None:
        server = Server(1, 0.5)
        group = CallGroup("m", account=ACCOUNT)
        served = server.gate.attempt(1, group, leg=0)
        async with held(served):
            server.gate.judge(group, 0, None)
            served.end = "whole"
        async with held(server.gate.attempt(1, group, leg=1)) as replica:
            attempt = server.gate.attempt(1, group, leg=2)
            async with held(attempt):
                assert attempt.refused(None, sure=True) == "siblings"
            await asyncio.sleep(JUST_NOW_SECONDS)
            server.gate.judge(group, 1, None)
            assert replica and attempt.refused(None, sure=True) == "others"

    play(scene)
