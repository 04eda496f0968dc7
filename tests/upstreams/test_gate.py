"""The gate: which replicas there are, and the one where a request's calls belong."""

from __future__ import annotations

import asyncio

from nproxy import config
from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.replicas import Replica
from tests.upstreams.conftest import hold, replicas
from tests.upstreams.held import held

CUT = Failure(FailureKind.CUT, "It broke off.")


async def test_no_limit_lets_all_through() -> None:
    gate = Gate(replicas(1), Policy())
    async with held(gate.attempt(1)), held(gate.attempt(1)), held(gate.attempt(1)):
        assert gate.replicas[0].legs == 3
    assert gate.replicas[0].legs == 0


async def test_calls_of_a_predecessor_count_against_the_limit() -> None:
    here, there = replicas(2)
    gate = Gate([here], Policy(2))
    gate.take_legs_elsewhere({here.label: 1, there.label: 2})
    async with held(gate.attempt(1)):
        assert gate.legs == {here.label: 1}, "its own only"
        second = asyncio.create_task(gate.attempt(1).acquire())
        await asyncio.sleep(0)
        assert gate.waiting == 1
        gate.replace([here, there])
        assert gate.waiting == 1, "what comes later has its calls there, too"
        gate.take_legs_elsewhere({there.label: 2})
        assert (await second).replica is here
    assert Gate(replicas(1), Policy()).legs == {}


async def test_Q3_kin_go_where_the_first_of_them_went() -> None:
    gate = Gate(replicas(3), Policy())
    async with held(gate.attempt(9)) as nine, held(gate.attempt(1)) as one:
        group = CallGroup(together=True)
        async with (
            held(gate.attempt(1, group)) as first,
            held(gate.attempt(1, group)) as second,
            held(gate.attempt(1)) as other,
        ):
            assert first is second and first not in (nine, one)
            assert other is one, "the least loaded"
    assert [(replica.legs, replica.choices) for replica in gate.replicas] == [(0, 0)] * 3


async def test_Q3_kin_leave_a_replica_that_cannot_be_reached() -> None:
    gate = Gate(replicas(2), Policy())
    group = CallGroup(together=True)
    async with held(gate.attempt(1, group)) as first:
        pass
    first.unreachable()
    async with held(gate.attempt(1, group)) as second, held(gate.attempt(1, group)) as third:
        assert second is third is not first


async def test_replicas_change_while_legs_wait() -> None:
    old, new = replicas(2), replicas(2)
    old[1].weight = new[0].weight = 2.0
    gate = Gate(old[:1], Policy(1))
    served: list[Replica] = []

    async def leg() -> None:
        async with held(gate.attempt(1)) as replica:
            served.append(replica)

    async with asyncio.TaskGroup() as tasks, held(gate.attempt(1)) as busy:
        tasks.create_task(leg())
        await asyncio.sleep(0)
        assert gate.waiting == 1
        gate.replace(new)
        assert gate.replicas == (old[0], new[1]), "the one that stays keeps what is known of it"
        assert old[0].weight == 2.0
        await asyncio.sleep(0)
        assert served == [new[1]]
        gate.replace(new[1:])
        assert busy.legs == 1, "a call in flight on one that left goes on"
    assert old[0].legs == 0


async def test_a_replica_that_comes_again_has_the_calls_that_it_had() -> None:
    """A server with one call at a time would get a second one, beside that which goes on."""
    first, second = replicas(2)
    gate = Gate([first, second], Policy(1))
    async with held(gate.attempt(1, CallGroup())) as went:
        other = second if went is first else first
        gate.replace([other])
        gate.replace([other])
        gate.replace([other, Replica(base=went.base, socket=None, label=went.label)])
        assert went in gate.replicas and not went.draining
        async with held(gate.attempt(1)) as taken, asyncio.TaskGroup() as tasks:
            assert taken is other
            waits = tasks.create_task(hold(gate))
            await asyncio.sleep(0)
            assert gate.waiting == 1
            waits.cancel()
    gate.replace([other])
    gate.replace([other, Replica(base=went.base, socket=None, label=went.label)])
    assert went not in gate.replicas, "it had left for good"


async def test_a_replica_that_drains_gets_no_new_calls() -> None:
    gate = Gate(replicas(2), Policy())
    group = CallGroup(together=True)
    async with held(gate.attempt(1, group)) as first:
        first.draining = True
        async with held(gate.attempt(1, group)) as second, held(gate.attempt(1)) as third:
            assert first not in (second, third)


async def test_a_replica_that_leaves_takes_none_of_the_kin_of_its_calls() -> None:
    first, second = replicas(2)
    gate, group = Gate([first], Policy()), CallGroup(together=True)
    async with held(gate.attempt(1, group)) as before:
        gate.replace([second])
        async with held(gate.attempt(1, group)) as after:
            assert (before, after) == (first, second)
        assert first.legs == 1
    assert first.legs == 0


async def test_a_trial_that_fails_counts_whoever_makes_it() -> None:
    """A request may have opened the breaker itself, and try the replica again, having nowhere else to go."""
    now = 0.0
    gate = Gate(replicas(1), Policy(breaker=config.Breaker(in_a_row=1, open=2.0)), clock=lambda: now)
    (replica,), group = gate.replicas, CallGroup()
    for now, open_for in ((0.0, 2.0), (2.5, 4.0), (7.0, 8.0)):
        async with held(gate.attempt(1, group)):
            assert gate.judge(group, 0, CUT) is replica
        assert replica.breaker.wait(now) == open_for
    async with held(gate.attempt(1, group, leg=1)):
        assert gate.judge(group, 1, CUT) is None, "a last resort makes it no longer"


async def test_a_request_counts_once_however_many_of_its_legs_fail() -> None:
    gate = Gate(replicas(1), Policy(breaker=config.Breaker(in_a_row=2)))
    group = CallGroup()
    for leg in range(5):
        async with held(gate.attempt(1, group, leg=leg)):
            assert gate.judge(group, leg, CUT) is None
    async with held(gate.attempt(1, other := CallGroup())):
        assert gate.judge(other, 0, CUT) is gate.replicas[0]
