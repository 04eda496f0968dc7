"""Where there may be capacity for a refused leg: whether it goes elsewhere, waits, or is told."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.call_group import CallGroup, QueueStats
from nproxy.upstreams.overload.call_attempt import AdmittedBy, CallAttempt
from nproxy.upstreams.overload.prospects import JUST_NOW_SECONDS
from nproxy.upstreams.overload.refusal_history import GIVE_UP_AFTER_FINDINGS
from nproxy.upstreams.overload.release_delay import LONGEST_DELAY
from tests.upstreams.overload.full_server import play
from tests.upstreams.overload.parts import Parts


def of(parts: Parts, attempt: CallAttempt) -> str:
    return parts.prospects.of(attempt, parts.loop.time(), sure=True)


def test_what_may_be_another_fault_does_not_wait_unless_it_was_waiting() -> None:
    async def scene() -> None:
        parts = Parts()
        parts.elsewhere = True
        attempt = parts.calling()
        assert of(parts, attempt) == "elsewhere"
        attempt.not_capacity = True
        assert of(parts, attempt) == ""
        parts.calling()
        attempt.admitted_by = "release"
        assert of(parts, attempt) == "others", "it goes where it is admitted to, not elsewhere"

    play(scene)


def test_it_waits_for_its_siblings_a_little_longer_than_these_are_in_flight() -> None:
    async def scene() -> None:
        parts, group = Parts(), CallGroup("m")
        attempt = parts.calling(group)
        group.at[1] = parts.replica
        assert of(parts, attempt) == "siblings"
        group.at.clear()
        assert of(parts, attempt) == ""
        group.served_at = parts.loop.time()
        assert of(parts, attempt) == "siblings"
        await asyncio.sleep(JUST_NOW_SECONDS)
        assert of(parts, attempt) == "others", "something of it was answered"

    play(scene)


def test_it_waits_while_the_server_answers_others() -> None:
    async def scene() -> None:
        parts = Parts()
        attempt = parts.calling(by="probe")
        assert of(parts, attempt) == ""
        another = parts.calling()
        assert of(parts, attempt) == "others", "one is in flight"
        parts.calls.end(another)
        assert of(parts, attempt) == ""
        parts.shared.answered_at = parts.loop.time()
        assert of(parts, attempt) == "others", "one was answered"
        await asyncio.sleep(parts.seconds)
        assert of(parts, attempt) == ""
        parts.with_workers().answers_at = parts.loop.time()
        assert of(parts, attempt) == "others", "another worker says so"

    play(scene)


@pytest.mark.parametrize(
    ("by", "delay", "room"),
    [("probe", None, ""), ("release", 0, "others"), ("release", LONGEST_DELAY, ""), ("", None, "")],
)
def test_it_waits_until_it_has_found_out(by: AdmittedBy, delay: int | None, room: str) -> None:
    """A probe has, an attempt that came too early has not."""

    async def scene() -> None:
        parts = Parts()
        attempt = parts.calling(by=by)
        if delay is not None:
            attempt.slot = parts.slots.add(parts.replica)
            attempt.slot.delay = delay
        assert of(parts, attempt) == room

    play(scene)


def test_a_new_leg_waits_where_others_wait_or_other_workers_may_know_more() -> None:
    async def scene() -> None:
        parts = Parts()
        attempt = parts.calling()
        assert of(parts, attempt) == ""
        waiter = parts.wait()
        assert of(parts, attempt) == "others"
        parts.admission.remove(waiter)
        parts.with_workers()
        assert of(parts, attempt) == "others"

    play(scene)


def test_it_is_told_when_its_request_is_out_of_patience_or_asks_for_too_much() -> None:
    async def scene() -> None:
        parts = Parts()
        attempt = parts.calling(by="release")
        parts.calling()
        attempt.group.queue_stats = stats = QueueStats(waiting_since=parts.loop.time())
        assert of(parts, attempt) == "others"
        stats.specific_findings = GIVE_UP_AFTER_FINDINGS
        assert of(parts, attempt) == ""
        stats.specific_findings = 0
        await asyncio.sleep(parts.seconds)
        assert of(parts, attempt) == ""

    play(scene)
