"""Legs that wait for a slot: in order, none lost, nobody passed by who may not be."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from nproxy.upstreams import gate as gates
from nproxy.upstreams.balancing import choose
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.overload.call_attempt import CallAttempt
from nproxy.upstreams.replica_slots import ReplicaSlots
from nproxy.upstreams.replicas import Replica
from tests.upstreams.conftest import hold, replicas
from tests.upstreams.held import held


async def test_one_slot_serves_in_the_order_of_asking() -> None:
    gate = Gate(replicas(1), Policy(1))
    order: list[int] = []
    most = 0

    async def leg(number: int) -> None:
        nonlocal most
        async with held(gate.attempt(1)) as replica:
            most = max(most, replica.legs)
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(leg(number))
    assert order == list(range(8))
    assert most == 1
    assert gate.waiting == 0
    assert gate.replicas[0].legs == gate.replicas[0].choices == 0


async def test_a_newcomer_does_not_overtake() -> None:
    gate = Gate(replicas(1), Policy(1))
    order: list[str] = []

    async def leg(name: str) -> None:
        async with held(gate.attempt(1)):
            order.append(name)

    async with asyncio.TaskGroup() as tasks:
        async with held(gate.attempt(1)):
            tasks.create_task(leg("waiter"))
            await asyncio.sleep(0)
        tasks.create_task(leg("newcomer"))
    assert order == ["waiter", "newcomer"]


async def test_a_waiter_that_is_cancelled_leaves_no_trace() -> None:
    gate = Gate(replicas(1), Policy(1))

    async def leg() -> None:
        async with held(gate.attempt(4)):
            await asyncio.sleep(3600)

    async with held(gate.attempt(1)):
        waiter = asyncio.create_task(leg())
        await asyncio.sleep(0)
        assert gate.waiting == 1
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert gate.waiting == 0
    assert gate.replicas[0].choices == 0


async def test_a_slot_handed_to_a_leg_in_the_moment_of_its_cancellation_goes_on() -> None:
    gate = Gate(replicas(1), Policy(1))
    served: list[str] = []

    async def leg(name: str) -> None:
        async with held(gate.attempt(1)):
            served.append(name)

    async with held(gate.attempt(1)):
        first = asyncio.create_task(leg("first"))
        second = asyncio.create_task(leg("second"))
        await asyncio.sleep(0)
    first.cancel()  # its future is already set: the slot is its own
    await asyncio.gather(first, second, return_exceptions=True)
    assert served == ["second"]
    assert gate.replicas[0].legs == 0


async def test_slots_survive_cancellation_at_random_moments() -> None:
    rng = random.Random(7)
    gate = Gate(replicas(2), Policy(2))

    async def leg() -> None:
        async with held(gate.attempt(1)) as replica:
            assert replica.legs <= 2
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(leg()) for _ in range(300)]
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    assert gate.waiting == 0
    assert [(replica.legs, replica.choices) for replica in gate.replicas] == [(0, 0), (0, 0)]


async def test_R9_a_leg_that_is_to_be_alone_is() -> None:
    gate = Gate(replicas(1), Policy())
    order: list[str] = []
    at_once: list[int] = []

    async def leg(name: str, alone: bool) -> None:
        async with held(gate.attempt(1, alone=alone)) as replica:
            order.append(name)
            await asyncio.sleep(0)
            at_once.append(replica.legs)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for name, alone in [("a", False), ("b", False), ("c", True), ("d", True), ("e", False), ("f", False)]:
            tasks.create_task(leg(name, alone))
    assert order == list("abcdef"), "and nobody passes it by"
    assert at_once == [2, 2, 1, 1, 2, 2]
    assert not gate.replicas[0].reserved


async def test_R9_a_leg_alone_takes_an_idle_replica() -> None:
    gate = Gate(replicas(2), Policy())
    async with (
        held(gate.attempt(1)) as busy,
        held(gate.attempt(1, alone=True)) as idle,
        held(gate.attempt(1)) as beside,
    ):
        assert idle is not busy and beside is busy


async def test_R9_a_leg_alone_waits_for_its_kin_and_is_not_passed_by() -> None:
    gate = Gate(replicas(2), Policy())
    group = CallGroup(together=True)
    served: list[str] = []

    async def leg(name: str, group: CallGroup | None, alone: bool) -> None:
        async with held(gate.attempt(1, group, alone=alone)):
            served.append(name)

    async with asyncio.TaskGroup() as tasks, held(gate.attempt(1, group)):
        tasks.create_task(leg("alone", group, True))
        tasks.create_task(leg("late", None, False))
        await asyncio.sleep(0)
        assert served == []
    assert served == ["alone", "late"]


async def test_R9_slots_alone_survive_cancellation_at_random_moments() -> None:
    rng = random.Random(13)
    gate = Gate(replicas(2), Policy())

    async def leg(alone: bool) -> None:
        async with held(gate.attempt(1, alone=alone)) as replica:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
                assert not alone or replica.legs == 1

    tasks = [asyncio.create_task(leg(rng.random() < 0.3)) for _ in range(300)]
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    assert not any(task.exception() for task in tasks if not task.cancelled())
    assert gate.waiting == 0
    assert [(replica.legs, replica.choices, replica.reserved) for replica in gate.replicas] == [(0, 0, False)] * 2


async def test_Q3_kin_wait_for_their_replica_and_others_pass_them_by() -> None:
    gate = Gate(replicas(2), Policy(1))
    served: list[tuple[str, Replica]] = []
    done = asyncio.Event()

    async def leg(name: str, group: CallGroup | None) -> None:
        async with held(gate.attempt(1, group)) as replica:
            served.append((name, replica))
            await done.wait()

    async with asyncio.TaskGroup() as tasks:
        group = CallGroup(together=True)
        async with held(gate.attempt(1, group)) as mine:
            tasks.create_task(leg("sibling", group))
            await asyncio.sleep(0)
            assert gate.waiting == 1 and served == []
            tasks.create_task(leg("stranger", None))
            await asyncio.sleep(0)
            assert [name for name, _ in served] == ["stranger"] and served[0][1] is not mine
            tasks.create_task(leg("late", None))
            await asyncio.sleep(0)
            assert gate.waiting == 2
        await asyncio.sleep(0)
        assert served[-1] == ("sibling", mine), "first come, first served on its own replica"
        done.set()
    assert [name for name, _ in served] == ["stranger", "sibling", "late"]
    assert gate.waiting == 0


async def test_kin_survive_cancellation_at_random_moments() -> None:
    rng = random.Random(11)
    gate = Gate(replicas(3), Policy(2))

    async def leg(group: CallGroup | None) -> None:
        async with held(gate.attempt(1, group)) as replica:
            assert replica.legs <= 2
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

    kins = [CallGroup(together=True) for _ in range(40)]
    tasks = [asyncio.create_task(leg(rng.choice([None, *kins]))) for _ in range(300)]
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    assert gate.waiting == 0
    assert [(replica.legs, replica.choices) for replica in gate.replicas] == [(0, 0)] * 3


async def test_a_leg_waits_for_others_than_one_that_was_not_reached() -> None:
    dead, *others = replicas(3)
    gate, group = Gate([dead, *others], Policy(1)), CallGroup()
    group.failed[0] = {dead}
    dead.unreachable()
    async with held(gate.attempt(1, CallGroup())), held(gate.attempt(1, CallGroup())):
        waits = asyncio.create_task(hold(gate))
        await asyncio.sleep(0)
        assert dead.legs == 1, "another leg has not been there yet"
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        leg = asyncio.create_task(again(gate, group))
        await asyncio.sleep(0)
        assert gate.waiting == 1 and not dead.legs
    assert await leg in others


async def test_and_for_no_longer_than_it_is_passed_over() -> None:
    dead, other = replicas(2)
    gate, group = Gate([dead, other], Policy(1)), CallGroup()
    group.failed[0] = {dead}
    dead.unreachable()
    dead.avoid_until = time.monotonic() + 0.01
    async with held(gate.attempt(1, CallGroup())) as busy, asyncio.timeout(10), held(gate.attempt(1, group)) as replica:
        assert (busy, replica) == (other, dead)


@pytest.mark.parametrize("rests", [0.02, 0.06], ids=["that it knows", "that is longer by then"])
async def test_nor_than_it_asked_to_be_left_alone(monkeypatch: pytest.MonkeyPatch, rests: float) -> None:
    """Looked at again as often as needed: its rest may have been made longer since."""
    monkeypatch.setattr("nproxy.upstreams.replica_slots.AVOID_SECONDS", 0.04)
    tired, other = replicas(2)
    gate, group = Gate([tired, other], Policy(1)), CallGroup()
    group.failed[0] = {tired}
    tired.rest(0.02, time.monotonic())
    async with held(gate.attempt(1, CallGroup())) as busy, asyncio.timeout(10):
        asyncio.get_running_loop().call_later(0.01, lambda: tired.rest(rests, time.monotonic()))
        async with held(gate.attempt(1, group)) as replica:
            assert (busy, replica) == (other, tired)
            assert not tired.flawed(time.monotonic())


async def test_a_leg_that_avoids_a_replica_keeps_nobody_from_it() -> None:
    tired, other = replicas(2)
    gate, group = Gate([tired, other], Policy(1)), CallGroup()
    group.failed[0] = {tired}
    tired.rest(60, time.monotonic())
    async with held(gate.attempt(1, CallGroup())) as busy:
        assert busy is other
        picky = asyncio.create_task(again(gate, group))
        await asyncio.sleep(0)
        async with asyncio.timeout(10), held(gate.attempt(1, CallGroup())) as replica:
            assert replica is tired and gate.waiting == 1
    assert await picky is other


async def test_R9_who_waits_behind_a_leg_alone_is_served_when_that_one_leaves() -> None:
    gate = Gate(replicas(1), Policy(4))
    async with held(gate.attempt(1)):
        alone, behind = asyncio.create_task(hold(gate, alone=True)), asyncio.create_task(hold(gate))
        await asyncio.sleep(0)
        assert gate.waiting == 2
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        await asyncio.sleep(0)
        assert gate.waiting == 0 and gate.replicas[0].legs == 2
        behind.cancel()
        await asyncio.gather(behind, return_exceptions=True)


async def test_nobody_waits_for_no_reason() -> None:
    """Legs of all kinds come, leave and are cancelled, replicas ask for rests: whoever waits could not be served."""
    rng = random.Random(17)
    gate = Gate(replicas(3), Policy(2))
    tasks: set[asyncio.Task[None]] = set()

    async def leg(group: CallGroup, alone: bool) -> None:
        async with held(gate.attempt(1, group, alone=alone)):
            await asyncio.sleep(3600)

    def of_some_kind() -> asyncio.Task[None]:
        group = CallGroup(together=rng.random() < 0.2)
        if rng.random() < 0.4:
            group.failed[0] = {rng.choice(gate.replicas)}
        if group.together:
            group.replica = rng.choice(gate.replicas)
        return asyncio.create_task(leg(group, rng.random() < 0.1))

    waited = 0
    for _ in range(2000):
        match rng.choice(["come", "come", "leave", "leave", "rest"]):
            case "come" if len(tasks) < 16:
                tasks.add(of_some_kind())
            case "leave" if tasks:
                left = rng.choice(sorted(tasks, key=id))
                left.cancel()
                tasks.discard(left)
            case "rest":
                replica = rng.choice(gate.replicas)
                replica.rest(60, time.monotonic()) if rng.random() < 0.5 else setattr(replica, "resting_until", 0.0)
                gate._slot_queue.serve()
        for _ in range(3):
            await asyncio.sleep(0)
        for _, attempt in gate._slot_queue._legs:
            waited += 1
            if attempt.alone:
                break  # nobody passes it by
            assert could_take(gate, attempt) is None
    assert waited > 500
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.waiting == 0 and not any(replica.legs for replica in gate.replicas)


def could_take(gate: Gate, attempt: CallAttempt) -> Replica | None:
    """The replica that would be given to a leg if nobody else waited."""
    slots, now = gate._slots, time.monotonic()
    failed = attempt.group.failed.get(attempt.leg, ())
    return choose(slots._standing(attempt, now), lambda: 0.0, now, parallel=slots.parallel, failed=failed)


async def again(gate: Gate, group: CallGroup) -> Replica:
    """Wait for a slot, and give it back at once; gives the replica."""
    async with held(gate.attempt(1, group)) as replica:
        return replica


async def test_a_leg_goes_to_a_replica_that_serves_its_model_and_passes_those_of_other_models_by() -> None:
    first, second = replicas(2)
    first.models, second.models = frozenset({"a"}), frozenset({"b"})
    gate = Gate([first, second], Policy(1))
    order: list[tuple[str, str]] = []

    async def leg(model: str) -> None:
        async with held(gate.attempt(1, CallGroup(model))) as replica:
            order.append((model, replica.label))

    async with asyncio.TaskGroup() as tasks, held(gate.attempt(1, CallGroup("a"))):
        for model in "aba":
            tasks.create_task(leg(model))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [("b", "r1")]
    assert order == [("b", "r1"), ("a", "r0"), ("a", "r0")]


async def test_what_a_waiting_leg_costs_does_not_grow_with_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """With servers of several models thousands may wait for one of them while others are free."""
    full, free = replicas(2)
    full.models, free.models = frozenset({"a"}), frozenset({"b"})
    asked = 0

    class Counted(ReplicaSlots):
        def take(self, attempt: CallAttempt) -> Replica | None:
            nonlocal asked
            asked += 1
            return super().take(attempt)

    monkeypatch.setattr(gates, "ReplicaSlots", Counted)
    gate = Gate([full, free], Policy(1))

    async def leg(model: str) -> None:
        async with held(gate.attempt(1, CallGroup(model))):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(200):
            tasks.create_task(leg("a"))
        await asyncio.sleep(0)
        tasks.create_task(leg("b"))
    assert 201 <= asked <= 3 * 201, "not 200 times 200"
