"""R9: whether another call may be why one ended."""

from __future__ import annotations

from nproxy.upstreams.concurrent_calls import MOST_TURNS, TRUSTED_SECONDS, ConcurrentCalls
from nproxy.upstreams.replicas import Replica


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A replica, and the calls that get their slots there."""

    def __init__(self) -> None:
        self.replica = Replica(base="http://r/v1", socket=None, label="r")
        self.clock = Clock()

    def call(self) -> ConcurrentCalls:
        self.replica.begun += 1
        self.replica.legs += 1
        return ConcurrentCalls(self.replica, self.clock)


def test_R9_a_call_without_others_was_not_interrupted() -> None:
    place = Place()
    call = place.call()
    call.spoke()
    assert not call.may_have_interrupted


def test_R9_one_that_came_earlier_or_later_may_have() -> None:
    place = Place()
    first, second = place.call(), place.call()
    place.replica.legs -= 1
    assert first.may_have_interrupted, "a later one came, and has ended since"
    assert second.may_have_interrupted, "which of two was the first to arrive is not known"


def test_R9_not_where_calls_have_streamed_beside_each_other() -> None:
    place = Place()
    calls = [place.call(), place.call()]
    for _ in range(MOST_TURNS):
        for call in calls:
            call.spoke()
            call.spoke()
    assert calls[0].may_have_interrupted, "so much may be chance"
    calls[0].spoke()
    assert not calls[0].may_have_interrupted and not place.call().may_have_interrupted
    place.clock.now += TRUSTED_SECONDS
    assert place.call().may_have_interrupted, "servers are restarted with other settings"


def test_R9_one_after_the_other_is_not_beside() -> None:
    place = Place()
    for _ in range(3 * MOST_TURNS):
        call = place.call()
        call.spoke()
    assert call.may_have_interrupted
