"""What the other accounts and the other workers are told."""

from __future__ import annotations

import asyncio

from nproxy.upstreams.overload.announcements import STANDS_SECONDS
from nproxy.upstreams.overload.peer_workers import NEWS_SECONDS, TELL_SECONDS
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


def test_slots_are_offered_here_while_legs_wait_here_or_in_another_worker() -> None:
    async def scene() -> None:
        parts = Parts()
        workers = parts.with_workers()
        waiter = parts.wait()
        assert [*parts.shared.waiting] == [parts] and parts.told == ["waits"]
        parts.announcements.hear("waits", "w1", 1)
        parts.admission.remove(waiter)
        assert [*parts.shared.waiting] == [parts] and parts.told == ["waits", "waits_no_more"]
        await asyncio.sleep(NEWS_SECONDS + 1.0)
        parts.announcements.remind(10.0)
        assert not parts.shared.waiting and not workers.waits(parts.loop.time()), "the other worker is gone"

    play(scene)


def test_a_worker_that_begins_to_wait_is_told_of_a_call_that_stands() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.with_workers()
        attempt = parts.calling()
        parts.announcements.hear("waits", "w1", 1)
        assert parts.told == []
        await asyncio.sleep(STANDS_SECONDS + 0.001)
        assert parts.told == ["answers"]
        parts.announcements.hear("waits", "w2", 1)
        parts.calls.end(attempt)
        parts.calling()
        await asyncio.sleep(STANDS_SECONDS + 0.001)
        assert parts.told == ["answers"], "the one that stood is over, and the new one may be refused"

    play(scene)


def test_calls_that_are_answered_are_told_again() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.with_workers()
        attempt = parts.calling()
        parts.announcements.remind(10.0)
        assert parts.told == [], "it may be refused yet"
        parts.announcements.remind(10.0)
        assert parts.told == ["answers"], "it stands since the last time"
        await asyncio.sleep(TELL_SECONDS)
        parts.calls.end(attempt)
        parts.calling()
        parts.calls.answered_at = parts.loop.time()
        parts.announcements.remind(10.0)
        assert parts.told == ["answers"] * 2, "one was answered a short while ago"

    play(scene)


def test_without_other_workers_there_is_nothing_to_tell() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.calling()
        parts.announcements.hear("waits", "w1", 1)
        parts.announcements.remind(10.0)
        assert not parts.announcements.workers_go_first() and not parts.shared.waiting

    play(scene)


def test_a_new_leg_lets_the_workers_go_first_where_legs_wait() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.with_workers()
        parts.announcements.hear("waits", "w1", 1)
        assert not parts.announcements.workers_go_first(), "no call is in flight here whose end would serve them"
        parts.calling()
        assert parts.announcements.workers_go_first()

    play(scene)
