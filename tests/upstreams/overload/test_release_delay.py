"""How late room comes behind an answer: what is believed of a server, by what happened to those that came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nproxy.upstreams.overload.release_delay import LONGEST_DELAY, RELEASE_DELAYS, FreedSlot, ReleaseDelay
from nproxy.upstreams.replicas import Replica


class Nobody:
    """Whose calls end, and who has no others."""

    def schedule(self, slot: FreedSlot) -> None:
        raise NotImplementedError

    def was_taken(self, slot: FreedSlot, *, guest: bool) -> bool:
        return guest and slot.in_flight < 0


def opened(release_delay: ReleaseDelay) -> FreedSlot:
    """A call ends."""
    return FreedSlot(
        Nobody(), Replica(base="http://r/v1", socket=None, label="r"), release_delay, release_delay.delay, 0, 0
    )


def comes(release_delay: ReleaseDelay, room: int, *, stays: float = 0.0, now: float = 0.0) -> int:
    """A call ends whose room comes so late, a place in RELEASE_DELAYS; gives how many were refused."""
    slot = opened(release_delay)
    for refused in range(len(RELEASE_DELAYS) + 1):
        if slot.delay >= room:
            release_delay.note_served(slot, now)
            return refused
        if not release_delay.note_refused(slot, now, pause=stays):
            return refused + 1
    raise AssertionError("it never ends")


@given(room=st.integers(0, LONGEST_DELAY))
def test_it_is_as_late_as_room_comes_most_of_the_time(room: int) -> None:
    release_delay = ReleaseDelay()
    for _ in range(12):
        comes(release_delay, room)
    assert release_delay.delay in (room, room - 1), "now and then it is tried a little sooner"
    assert sum(comes(release_delay, room) for _ in range(90)) <= 90 / 8 + 1


@given(room=st.integers(1, LONGEST_DELAY))
def test_it_comes_sooner_again_where_room_does(room: int) -> None:
    release_delay = ReleaseDelay()
    for _ in range(12):
        comes(release_delay, room)
    for _ in range(8 * len(RELEASE_DELAYS)):
        comes(release_delay, 0)
    assert release_delay.delay == 0


def test_a_refusal_now_and_then_is_none_of_it() -> None:
    release_delay = ReleaseDelay()
    for number in range(100):
        comes(release_delay, 2 if number % 4 == 0 else 0)
        assert release_delay.delay == 0


def test_where_no_room_comes_at_all_it_is_asked_for_twice_and_believed_to_be_taken() -> None:
    release_delay = ReleaseDelay()
    assert comes(release_delay, LONGEST_DELAY + 1) == len(RELEASE_DELAYS)
    assert [comes(release_delay, LONGEST_DELAY + 1) for _ in range(20)] == [2] * 20
    assert release_delay.delay == 0


def test_where_one_that_is_too_soon_keeps_everybody_away_the_next_end_shows_it() -> None:
    release_delay = ReleaseDelay()
    refusals = [comes(release_delay, 2, stays=2.0, now=number) for number in range(20)]
    assert refusals == [1] * 4 + [0] * 16, "twice for each place, and then no more: it costs too much to find out"


def test_that_it_is_not_late_any_more_is_found_out_at_last() -> None:
    release_delay = ReleaseDelay()
    refused = [sum(comes(release_delay, 2, stays=2.0, now=second) for _ in range(10)) for second in range(600)]
    assert refused[:2] == [4, 0] and sum(refused) <= 4 + 2 * 600 / (64 * 2.0) + 2, "as seldom as it is dear"
    assert sum(comes(release_delay, 0, stays=2.0, now=second) for second in range(600, 800)) == 0
    assert release_delay.delay == 0


def test_calls_that_end_together_tell_of_the_place_that_they_came_at() -> None:
    release_delay = ReleaseDelay()
    for slot in [opened(release_delay) for _ in range(4)]:
        release_delay.note_refused(slot, 0.0, pause=1.0)
    assert release_delay.delay == 1
