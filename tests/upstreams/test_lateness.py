"""How late room comes behind an answer: what is believed of a server, by what happened to those that came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nproxy.upstreams.lateness import LATE_SECONDS, LATEST, Lateness, Opening
from nproxy.upstreams.replicas import Replica


class Nobody:
    """Whose calls end, and who has no others."""

    def comes(self, opening: Opening) -> None:
        raise NotImplementedError

    def taken(self, opening: Opening, *, guest: bool) -> bool:
        return guest and opening.beside < 0


def opened(lateness: Lateness) -> Opening:
    """A call ends."""
    return Opening(Nobody(), Replica(base="http://r/v1", socket=None, label="r"), lateness, lateness.late, 0, 0)


def comes(lateness: Lateness, room: int, *, stays: float = 0.0, now: float = 0.0) -> int:
    """A call ends whose room comes so late, a place in LATE_SECONDS; gives how many were refused."""
    opening = opened(lateness)
    for refused in range(len(LATE_SECONDS) + 1):
        if opening.late >= room:
            lateness.note_served(opening, now)
            return refused
        if not lateness.note_refused(opening, now, stays=stays):
            return refused + 1
    raise AssertionError("it never ends")


@given(room=st.integers(0, LATEST))
def test_it_is_as_late_as_room_comes_most_of_the_time(room: int) -> None:
    lateness = Lateness()
    for _ in range(12):
        comes(lateness, room)
    assert lateness.late in (room, room - 1), "now and then it is tried a little sooner"
    assert sum(comes(lateness, room) for _ in range(90)) <= 90 / 8 + 1


@given(room=st.integers(1, LATEST))
def test_it_comes_sooner_again_where_room_does(room: int) -> None:
    lateness = Lateness()
    for _ in range(12):
        comes(lateness, room)
    for _ in range(8 * len(LATE_SECONDS)):
        comes(lateness, 0)
    assert lateness.late == 0


def test_a_refusal_now_and_then_is_none_of_it() -> None:
    lateness = Lateness()
    for number in range(100):
        comes(lateness, 2 if number % 4 == 0 else 0)
        assert lateness.late == 0


def test_where_no_room_comes_at_all_it_is_asked_for_twice_and_believed_to_be_taken() -> None:
    lateness = Lateness()
    assert comes(lateness, LATEST + 1) == len(LATE_SECONDS)
    assert [comes(lateness, LATEST + 1) for _ in range(20)] == [2] * 20
    assert lateness.late == 0


def test_where_one_that_is_too_soon_keeps_everybody_away_the_next_end_shows_it() -> None:
    lateness = Lateness()
    refusals = [comes(lateness, 2, stays=2.0, now=number) for number in range(20)]
    assert refusals == [1] * 4 + [0] * 16, "twice for each place, and then no more: it costs too much to find out"


def test_that_it_is_not_late_any_more_is_found_out_at_last() -> None:
    lateness = Lateness()
    refused = [sum(comes(lateness, 2, stays=2.0, now=second) for _ in range(10)) for second in range(600)]
    assert refused[:2] == [4, 0] and sum(refused) <= 4 + 2 * 600 / (64 * 2.0) + 2, "as seldom as it is dear"
    assert sum(comes(lateness, 0, stays=2.0, now=second) for second in range(600, 800)) == 0
    assert lateness.late == 0


def test_calls_that_end_together_tell_of_the_place_that_they_came_at() -> None:
    lateness = Lateness()
    for opening in [opened(lateness) for _ in range(4)]:
        lateness.note_refused(opening, 0.0, stays=1.0)
    assert lateness.late == 1
