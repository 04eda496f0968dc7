"""Which leg is admitted, whether it may go, and where it calls."""

from __future__ import annotations

from nproxy.upstreams.call_group import CallGroup
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


def test_a_leg_that_is_admitted_calls_and_waits_no_more() -> None:
    async def scene() -> None:
        parts = Parts()
        waiter = parts.wait()
        assert parts.admission.admit_next("release", parts.replica)
        assert waiter.future.done() and waiter.attempt.admitted_by == "release"
        assert parts.calls.standing == {waiter.attempt.number}
        assert not parts.waiting and not parts.shared.waiting, "others are told that none waits here"
        assert not parts.admission.admit_next("release", parts.replica), "none waits"

    play(scene)


def test_it_goes_to_the_replica_with_the_slot_although_that_was_full() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.full.note_full(parts.replica, parts.loop.time(), None)
        waiter, another = parts.wait(), parts.wait()
        parts.admission.admit_next("release", parts.replica)
        assert waiter.attempt.group.full[0] == set()
        parts.elsewhere = True
        parts.admission.admit_next("probe")
        assert another.attempt.group.full[0] == {parts.replica}, "where others have capacity, none that is full"

    play(scene)


def test_none_goes_where_the_server_asked_for_a_pause() -> None:
    async def scene() -> None:
        parts = Parts()
        now = parts.loop.time()
        parts.full.note_full(parts.replica, now, 5.0).no_call_before = now + 5.0
        waiter = parts.wait()
        assert not parts.admission.admit_next("release", parts.replica)
        assert waiter in parts.waiting and not parts.calls.standing

    play(scene)


def test_no_leg_of_the_excluded_request_goes() -> None:
    async def scene() -> None:
        parts = Parts()
        group = CallGroup("m")
        parts.wait(group)
        assert not parts.admission.admit_next("release", exclude=group)
        another = parts.wait()
        assert parts.admission.admit_next("release", exclude=group) and another.future.done()

    play(scene)
