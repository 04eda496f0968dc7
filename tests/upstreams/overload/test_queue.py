"""More calls than a server has room for: who waits, who goes next, and who is told; in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.upstreams.call_group import AccountKey, CallGroup
from nproxy.upstreams.overload.call_attempt import End
from nproxy.upstreams.overload.probe_pace import LONGEST_PAUSE_SECONDS
from nproxy.upstreams.overload.queues import MOST_ACCOUNTS
from tests.upstreams.conftest import replicas
from tests.upstreams.held import held
from tests.upstreams.overload.full_server import ACCOUNT, Refused, Server, play

OTHERS = (("m", "another key"), ("another model", ""))


@pytest.mark.parametrize("room", [1, 2, 5])
@pytest.mark.parametrize("sure", [True, False])
def test_many_are_served_one_after_the_other_in_their_order(room: int, sure: bool) -> None:
    async def scene() -> None:
        server = Server(room, sure=sure)
        whole = await server.request(32)
        assert whole == pytest.approx(-(-32 // room), abs=0.3), "no room stands idle"
        assert server.calls <= 2 * 32 + (6 if sure else 12), (
            "each is turned away once, and a few find out whether there is more room"
        )
        if room == 1 and sure:
            assert [number for _, number in server.served] == [*range(32)]

    play(scene)


def test_requests_take_turns() -> None:
    async def scene() -> None:
        server = Server(2)
        async with asyncio.TaskGroup() as tasks:
            many = tasks.create_task(server.request(32))
            few = [tasks.create_task(server.request(1, at=0.5)) for _ in range(3)]
        assert max(one.result() for one in few) <= 4.5, "two are served in each second"
        assert many.result() == pytest.approx(17.5, abs=0.6)

    play(scene)


def test_who_comes_first_is_served_first() -> None:
    """Also where each has found the server full several times."""

    async def scene() -> None:
        server = Server(1)
        came = [0.0, 0.1, 0.2, 0.3]
        assert await asyncio.gather(*(server.request(1, at=at) for at in came)) == [1.0, 2.0, 3.0, 4.0]

    play(scene)


@pytest.mark.parametrize("sure", [True, False])
def test_all_requests_are_served(sure: bool) -> None:
    async def scene() -> None:
        server = Server(4, 0.25, sure=sure)
        whole = await asyncio.gather(*(server.request(8) for _ in range(16)))
        assert max(whole) == pytest.approx(16 * 8 / 4 * 0.25, rel=0.1)

    play(scene)


@pytest.mark.parametrize("sure", [True, False])
def test_where_nobody_is_served_all_are_told_at_once(sure: bool) -> None:
    async def scene() -> None:
        server = Server(0, sure=sure)
        with pytest.raises(Refused):
            await server.request(8)
        assert server.now < 0.5 and server.calls <= 2 * 8
        assert not server.gate.waiting

    play(scene)


@pytest.mark.parametrize("patience", [0.0, 10.0, 40.0])
def test_who_is_not_served_is_told_after_a_while_and_has_not_asked_often(patience: float) -> None:
    async def scene() -> None:
        server = Server(1, 60.0)
        server.gate.patience = patience
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.request(1))
            with pytest.raises(Refused) as refused:
                await server.request(1, at=1.0)
        assert refused.value.args[0] == pytest.approx(1.0 + patience, abs=0.2)
        assert len(server.refusals) <= 9

    play(scene)


def test_who_was_served_in_part_is_told_after_a_while_too() -> None:
    """A place in the room is somebody else's from then on, and others go before it."""

    async def scene() -> None:
        server = Server(3, 600.0)
        long = [asyncio.create_task(server.request(2)) for _ in range(2)]
        group = CallGroup("m", account=ACCOUNT)
        answered = asyncio.create_task(server.leg(group, 0, 2.0))
        await asyncio.sleep(1.9)
        server.room = 2
        with pytest.raises(Refused):
            await server.leg(group, 1)
        assert answered.done() and server.now == pytest.approx(2.0 + server.gate.patience, abs=2.5)
        for task in long:
            task.cancel()

    play(scene)


def test_who_is_being_served_has_patience() -> None:
    async def scene() -> None:
        server = Server(2, 60.0)
        assert await server.request(4) == pytest.approx(120.0, abs=0.1)
        assert len(server.refusals) <= 12, "more seldom each time"

    play(scene)


def test_who_is_served_by_turns_has_patience() -> None:
    async def scene() -> None:
        server = Server(1, 2.0)
        whole = await asyncio.gather(*(server.request(4) for _ in range(4)))
        assert max(whole) == pytest.approx(32.0, abs=0.5)

    play(scene)


def test_more_room_is_found() -> None:
    """Answers are long, so that none ends meanwhile."""

    async def scene() -> None:
        server = Server(2, 60.0)

        def grows() -> None:
            server.room = 100

        server.loop.call_later(3.0, grows)
        assert await server.request(32) < 60 + LONGEST_PAUSE_SECONDS
        assert sum(server.inside.values()) == 0

    play(scene)


def test_a_single_failure_that_may_be_another_is_tried_again_by_itself() -> None:
    async def scene() -> None:
        server = Server(100, 10.0, sure=False, odd=lambda number: number == 3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.request(3))
            assert await server.request(1, at=1.0, seconds=1.0) == pytest.approx(2.125)
        assert not server.gate.queues.of(ACCOUNT).waiting

    play(scene)


def test_many_such_failures_hold_nobody_up() -> None:
    """One in five fails: nearly as many are served in a second as if each of them were just made again."""

    async def scene() -> None:
        server = Server(100, 0.1, sure=False, odd=lambda number: number * 2654435761 % 97 < 19)

        failed = 0

        async def client() -> None:
            nonlocal failed
            for _ in range(20):
                try:
                    await server.request(1)
                except Refused:
                    failed += 1

        await asyncio.gather(*(client() for _ in range(32)))
        assert server.now < 20 * (0.1 + 0.2 * 0.125) * 2
        assert failed <= 640 * 0.2 * 0.2, "as many as fail twice"

    play(scene)


def test_a_wait_that_the_server_asks_for_is_kept_but_where_another_call_ends() -> None:
    async def scene() -> None:
        server = Server(1, 1.0, wait=3.0)
        assert await server.request(3) == pytest.approx(3.0)
        late = Server(1, 1.0, wait=3.0, late=0.1)
        await late.request(3)
        assert late.refusals[:3] == [0, 0, 1.0] and min(late.refusals[3:], default=4.0) >= 4.0

    play(scene)


def test_a_call_that_breaks_leaves_no_room_for_others() -> None:
    async def scene() -> None:
        server = Server({"r0": 2, "r1": 100}, count=2)
        queue = server.gate.queues.of(ACCOUNT)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.request(2, seconds=5.0))
            await asyncio.sleep(0.1)
            queue._full.note_full(server.gate.replicas[0], server.loop.time(), None)
            waiter = tasks.create_task(server.gate.attempt(1, CallGroup("m", account=ACCOUNT), waits=True).acquire())
            await asyncio.sleep(0.01)
            attempt = server.gate.attempt(1, CallGroup("m", account=ACCOUNT))
            queue.calls.begin(attempt)
            attempt.end = "broken"
            queue.ended(attempt, server.gate.replicas[1])
            assert not waiter.done() and queue.waiting
            await waiter

    play(scene)


@pytest.mark.parametrize("end", ["whole", "error", "broken", ""])
def test_nobody_waits_long_beside_an_idle_server(end: End) -> None:
    async def scene() -> None:
        server = Server(1)
        queue = server.gate.queues.of(ACCOUNT)
        attempt = server.gate.attempt(1, CallGroup("m", account=ACCOUNT))
        replica = (await attempt.acquire()).replica
        queue._full.note_full(replica, server.loop.time(), None)
        server.inside["r0"] = 1
        for _ in range(8):
            queue._probes.pace.note_full(probe=True)
        asks = asyncio.create_task(server.request(1))
        await asyncio.sleep(1.0)
        assert queue.waiting and server.refusals
        server.inside["r0"] = 0
        attempt.end = end
        attempt.__exit__()
        assert await asks < 1.0 + 1.0 + 1.6

    play(scene)


def test_a_call_that_was_given_up_was_not_answered() -> None:
    async def scene() -> None:
        server = Server(0)
        group = CallGroup("m", account=ACCOUNT)
        async with held(server.gate.attempt(1, group, leg=0)):
            pass  # its client has left
        server.gate.judge(group, 0, None)
        with pytest.raises(Refused):
            await server.leg(group, 1)
        assert server.now < 0.5

    play(scene)


def test_a_long_wait_is_the_clients() -> None:
    async def scene() -> None:
        server = Server(1, 1.0, wait=3600.0)
        with pytest.raises(Refused):
            await server.request(3)
        assert server.now < 1

    play(scene)


def test_nobody_waits_for_a_replica_that_was_full_and_is_down() -> None:
    """The other one asks for a longer wait than requests wait."""

    async def scene() -> None:
        server = Server(1, count=2)
        await server.request(8)
        await asyncio.sleep(60.0)
        up, down = server.gate.replicas
        down.health.down = True
        server.wait[up.label] = 3600.0
        began = server.now
        served = asyncio.create_task(server.request(1))
        with pytest.raises(Refused):
            await server.request(1, at=0.5)
        assert server.now - began < 1.0
        await served

    play(scene)


def test_who_leaves_makes_way() -> None:
    async def scene() -> None:
        server = Server(1)
        first = asyncio.create_task(server.request(1))
        leaves = asyncio.create_task(server.request(4, at=0.1))
        stays = asyncio.create_task(server.request(1, at=0.2))
        await asyncio.sleep(0.5)
        leaves.cancel()
        assert await first == 1.0 and await stays == pytest.approx(2.0, abs=0.1)
        queue = server.gate.queues.of(ACCOUNT)
        assert not queue.waiting and not queue.calls.standing and not server.gate.waiting

    play(scene)


def test_who_leaves_as_it_is_let_in_makes_way() -> None:
    async def scene() -> None:
        server = Server(1)
        first = asyncio.create_task(server.request(1))
        leaves = asyncio.create_task(server.request(1, at=0.1))
        stays = asyncio.create_task(server.request(1, at=0.2))
        queue = server.gate.queues.of(ACCOUNT)
        await asyncio.sleep(0.5)
        let_in = queue._admission.admit

        def and_leave(*how: Any) -> None:
            let_in(*how)
            leaves.cancel()

        queue._admission.admit = and_leave  # type: ignore[assignment, method-assign]
        assert await first == 1.0 and await stays == pytest.approx(2.0, abs=0.1)
        assert leaves.cancelled()

    play(scene)


def test_other_accounts_do_not_wait() -> None:
    async def scene() -> None:
        server = Server(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.request(4))
            await asyncio.sleep(0.5)
            assert server.gate.waiting == 3
            async with (
                held(server.gate.attempt(1, CallGroup("m", account=("m", "another")))),
                held(server.gate.attempt(1)),
            ):
                assert server.now == 0.5
        for number in range(2 * MOST_ACCOUNTS):
            server.gate.attempt(1, CallGroup("m", account=("m", str(number))))
        assert len(server.gate.queues) <= MOST_ACCOUNTS

    play(scene)


@pytest.mark.parametrize("late", [0.0, 0.001])
def test_legs_go_where_there_is_room_not_where_there_is_nobody(late: float) -> None:
    """A replica that turns everybody away is never busy."""

    async def scene() -> None:
        server = Server({"r0": 0, "r1": 2}, count=2, late=late)
        assert await server.request(24) < 12 * (1 + 1.5 * (late > 0) * 0.25) + 1
        assert len(server.served) == 24 and server.calls < 5 * 24

    play(scene)


@pytest.mark.parametrize("wait", [2.0, 25.0])
def test_a_replica_that_asks_for_a_pause_holds_up_nobody_elsewhere(wait: float) -> None:
    async def scene() -> None:
        server = Server({"r0": 0, "r1": 2}, count=2, wait={"r0": wait})
        assert await server.request(24) < 24 / 2 + 2
        assert len(server.served) == 24

    play(scene)


def test_both_replicas_are_made_use_of() -> None:
    async def scene() -> None:
        server = Server({"r0": 2, "r1": 3}, count=2)
        whole = await asyncio.gather(server.request(16), server.request(9))
        assert max(whole) < 25 / 5 + 1.5

    play(scene)


@pytest.mark.parametrize("wait", [None, 8.0])
def test_a_replica_that_comes_takes_those_that_wait(wait: float | None) -> None:
    """What another one asked for is nothing to it."""

    async def scene() -> None:
        server = Server({"r0": 1, "r1": 100}, 5.0, wait={"r0": wait})
        server.loop.call_later(1.0, lambda: server.gate.replace(replicas(2)))
        assert await server.request(16) < 7

    play(scene)


def test_only_a_replica_that_comes_is_a_reason_to_look_for_capacity() -> None:
    """An upstream gets its replicas anew whenever those of any upstream change, and with every reload."""

    async def scene() -> None:
        server = Server(1, 600.0)
        server.gate.patience = 60.0
        served = asyncio.create_task(server.request(1))
        waits = asyncio.create_task(server.request(1, at=1.0))
        await asyncio.sleep(30.0)
        before = len(server.refusals)
        for _ in range(20):
            server.gate.replace(replicas(1))
            await asyncio.sleep(1.0)
        assert len(server.refusals) - before <= 3
        served.cancel()
        await asyncio.wait((waits,), timeout=0.1)
        waits.cancel()

    play(scene)


def test_a_replica_that_is_gone_is_not_asked_again() -> None:
    async def scene() -> None:
        server = Server({"r0": 1, "r1": 1}, 1.0, count=2)
        request = asyncio.create_task(server.request(8))
        await asyncio.sleep(2.5)
        server.gate.replace(server.gate.replicas[1:])
        queue = server.gate.queues.of(ACCOUNT)
        assert {*queue._full} == {*server.gate.replicas}
        await request

    play(scene)


def test_an_overload_that_is_over_leaves_nothing_behind() -> None:
    """Else the end of every later call would be looked at as one that frees a slot."""

    async def scene() -> None:
        server = Server(1, 0.1)
        await server.request(4)
        assert {*server.gate.queues.of(ACCOUNT)._full} == {*server.gate.replicas}
        await asyncio.sleep(10.0)
        await server.request(1)
        assert not server.gate.queues.of(ACCOUNT)._full

    play(scene)


def test_nor_where_it_turns_somebody_away_behind_that() -> None:
    async def scene() -> None:
        server = Server(1, count=2)
        attempt = server.gate.attempt(1, CallGroup("m", account=ACCOUNT))
        async with held(attempt) as gone:
            server.gate.replace([one for one in server.gate.replicas if one is not gone])
            assert attempt.refused(8.0, sure=True) == "elsewhere"
        assert gone not in server.gate.queues.of(ACCOUNT)._full

    play(scene)


def test_a_rush_that_is_over_keeps_nobody_waiting() -> None:
    """Who was full then may have room now; and who waits finds out as soon as ever."""

    async def scene() -> None:
        server = Server({"r0": 1, "r1": 8}, count=2)
        await asyncio.gather(*(server.request(8, at=at / 2) for at in range(16)))
        await asyncio.sleep(3.0)
        since = server.now
        whole = await asyncio.gather(*(server.request(1, at=at / 7) for at in range(140)))
        assert max(end - since - at / 7 for at, end in enumerate(whole)) < 2.5

    play(scene)


@settings(max_examples=200, deadline=None)
@given(
    rooms=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    requests=st.lists(
        st.tuples(st.integers(1, 8), st.floats(0, 5), st.none() | st.floats(0, 8), st.sampled_from([ACCOUNT, *OTHERS])),
        min_size=1,
        max_size=8,
    ),
    late=st.sampled_from([0.0, 0.05, 0.3]),
    sure=st.booleans(),
    odd=st.sampled_from([0, 10, 50]),
    wait=st.sampled_from([None, None, 0.0, 2.0, 60.0]),
    each=st.booleans(),
)
def test_nobody_waits_for_ever_and_nothing_is_left(
    rooms: list[int],
    requests: list[tuple[int, float, float | None, AccountKey]],
    late: float,
    sure: bool,
    odd: int,
    wait: float | None,
    each: bool,
) -> None:
    """Requests come, are served or told, or leave; who has the time to be served by a server without faults is."""

    async def scene() -> None:
        of = {f"r{place}": room for place, room in enumerate(rooms)}
        failing = dict[str, Any](sure=sure, wait=wait, each=each, odd=lambda number: number * 2654435761 % 100 < odd)
        server = Server(of, 0.5, count=len(rooms), late=late, **failing)
        tasks = [asyncio.create_task(server.request(n, at=at, account=account)) for n, at, _, account in requests]
        for task, (_, at, leaves, _) in zip(tasks, requests, strict=True):
            if leaves is not None:
                server.loop.call_later(at + leaves, task.cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert server.now < 120
        for queue in server.gate.queues._queues.values():
            assert (queue.waiting, queue.calls.standing) == ([], set())
        shared = server.gate.queues.shared
        assert (server.gate.waiting, shared.calls, len(shared.waiting)) == (0, 0, 0)
        legs = sum(n for n, *_ in requests)
        assert server.calls <= 6 * legs + 5 * server.now + 10, "a full server is not run down"
        work = legs * 0.5
        if min(rooms) > 0 and not odd and not late and wait is None and work < 9:
            for end, (_, _, leaves, _) in zip(ends, requests, strict=True):
                assert isinstance(end, float) or leaves is not None, (end, requests)

    play(scene)


def test_a_leg_that_waits_probes_soon_after_the_only_call_broke() -> None:
    """Its end admits none, as it says nothing of a slot; and nothing else is in flight whose end would."""

    async def scene() -> None:
        server = Server(1, 0.1)
        server.gate.patience = 300.0

        async def breaks() -> None:
            group = CallGroup("m", account=ACCOUNT)
            attempt = server.gate.attempt(1, group)
            async with held(attempt) as replica:
                assert server.takes(replica, group)
                await server.answer(replica, group, 100.0)
                attempt.end = "broken"

        broken = asyncio.create_task(breaks())
        assert 100.0 < await server.request(1, at=1.0) < 101.0
        await broken

    play(scene)
