"""When a freed slot is offered, whether another call took it, and what the attempts for it teach."""

from __future__ import annotations

import asyncio

from nproxy.upstreams.overload.release_delay import LONGEST_DELAY, RELEASE_DELAYS
from nproxy.upstreams.overload.shared_capacity import OwnLimit
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


def test_a_slot_is_offered_after_the_delay_of_its_server() -> None:
    async def scene() -> None:
        parts = Parts()
        waiter = parts.wait()
        parts.shared.release_delay(parts.replica).delay = LONGEST_DELAY
        parts.slots.schedule(parts.slots.add(parts.replica))
        assert parts.probes.delayed_slots == 1 and not waiter.future.done()
        await asyncio.sleep(RELEASE_DELAYS[LONGEST_DELAY] + 0.001)
        assert waiter.attempt.admitted_by == "release" and parts.probes.delayed_slots == 0

    play(scene)


def test_a_slot_that_another_worker_left_is_not_offered_to_other_accounts() -> None:
    async def scene() -> None:
        parts = Parts()
        other = Parts(parts.shared)
        elsewhere = other.wait()
        parts.slots.schedule(parts.slots.add(parts.replica, left_by_peer=True))
        assert not elsewhere.future.done()
        parts.slots.schedule(parts.slots.add(parts.replica))
        assert elsewhere.future.done() and other.slots.is_guest(elsewhere.attempt)

    play(scene)


def test_a_slot_was_taken_if_more_calls_are_in_flight_than_when_it_was_freed() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.calling()
        attempt = parts.calling()
        parts.calls.end(attempt)
        attempt.slot = slot = parts.slots.add(parts.replica)
        parts.calls.begin(attempt)
        assert parts.slots.came_too_early(attempt), "nobody else did"
        another = parts.calling()
        assert slot.host.was_taken(slot, guest=False) and not parts.slots.came_too_early(attempt)
        parts.slots.note_refused(another)
        assert not parts.slots.came_too_early(attempt), "it began later, and so says nothing of those before"
        parts.calls.end(another)
        assert parts.slots.came_too_early(attempt)

    play(scene)


def test_a_call_that_was_in_flight_and_is_refused_uses_no_slot() -> None:
    async def scene() -> None:
        parts = Parts()
        before = parts.calling()
        attempt = parts.calling()
        parts.calls.end(attempt)
        attempt.slot = slot = parts.slots.add(parts.replica)
        assert slot.in_flight == 1
        parts.slots.note_refused(before)
        assert slot.in_flight == 0

    play(scene)


def test_who_comes_too_early_is_followed_by_another_later() -> None:
    async def scene() -> None:
        parts = Parts()
        attempt = parts.calling(by="release")
        attempt.slot = slot = parts.slots.add(parts.replica)
        waiter = parts.wait()
        parts.slots.note_too_early(attempt, slot, parts.loop.time(), pause=0.0)
        assert slot.delay == 1 and parts.probes.delayed_slots == 1
        await asyncio.sleep(RELEASE_DELAYS[1] + 0.001)
        assert waiter.attempt.slot is slot
        parts.slots.note_too_early(attempt, slot, parts.loop.time(), pause=5.0)
        assert parts.probes.delayed_slots == 0, "the server asked for a pause"

    play(scene)


def test_attempts_for_other_accounts_slots_show_whether_capacity_is_shared() -> None:
    async def scene() -> None:
        parts = Parts()
        host, guest = Parts(parts.shared), parts.calling(by="release")
        for number in range(OwnLimit.REFUSALS):
            guest.slot = slot = host.slots.add(parts.replica)
            parts.slots.note_too_early(guest, slot, parts.loop.time() + number, pause=0.0)
        assert parts.calls.own_limit.believed(parts.loop.time() + OwnLimit.REFUSALS)
        assert parts.shared.release_delay(parts.replica).delay == 0, "which says nothing of the server's delay"
        parts.slots.note_answered(guest, parts.loop.time())
        assert parts.calls.own_limit.disproved

    play(scene)
