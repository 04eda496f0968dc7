"""Health checks of a replica: when they are due, and what they come to."""

from __future__ import annotations

from math import inf

from nproxy.config import Health
from nproxy.upstreams.health_checks import AGAIN_SECONDS, SILENT_SECONDS, HealthChecks

DEFAULT = Health()
HALF = 0.5  # of the jitter: the next check is due in exactly one interval


class Watch:
    """Health checks with a clock."""

    def __init__(self, settings: Health = DEFAULT) -> None:
        self.health = HealthChecks(settings)
        self.now = 0.0

    def check(self, *, well: bool, takes: float = 0.0, answered: bool = True) -> bool:
        """The next check, at its time."""
        self.now = max(self.now, self.health.due())
        self.health.began(self.now, HALF)
        self.now += takes
        return self.health.ended(well=well, answered=answered)


def test_the_first_look_is_due_at_once_and_the_next_after_an_interval_or_so() -> None:
    watch = Watch()
    assert watch.health.answered is None and watch.health.due() == -inf
    watch.check(well=True)
    assert watch.health.answered and watch.health.due() == 10.0
    for jitter, due in ((0.0, 9.0), (1.0, 11.0)):
        watch.health.began(0.0, jitter)
        assert watch.health.due() == due


def test_without_an_interval_there_are_none() -> None:
    checks = HealthChecks(Health(interval=None))
    checks.called(0.0)
    checks.suspect()
    assert checks.due() == inf


def test_three_in_a_row_and_it_is_down_two_and_it_is_up() -> None:
    watch = Watch()
    assert [watch.check(well=well) for well in (False, False, True, False, False, False)] == [False] * 5 + [True]
    assert watch.health.down and watch.health.doubtful
    assert [watch.check(well=well) for well in (True, False, True, True)] == [False, False, False, True]
    assert not watch.health.down and not watch.health.doubtful


def test_a_look_that_contradicts_is_soon_followed_by_the_next() -> None:
    watch = Watch()
    watch.check(well=True)
    for _ in range(3):
        watch.check(well=False)
    assert watch.health.down and watch.now == 12.0, "at 10, 11 and 12 seconds"
    watch.check(well=False)
    assert watch.health.due() == watch.now + 10
    watch.check(well=True)
    watch.check(well=True)
    assert watch.now == 24.0 and not watch.health.down


def test_one_failed_look_makes_others_preferred() -> None:
    watch = Watch()
    watch.check(well=False)
    assert watch.health.doubtful and not watch.health.down
    watch.check(well=True)
    assert not watch.health.doubtful


def test_a_server_that_stops_while_it_has_calls_is_found_down_within_eleven_seconds() -> None:
    watch = Watch()
    watch.check(well=True)
    watch.health.called(1.0)
    watch.health.heard(1.0)  # and from now on nothing
    assert watch.health.due() == 3.0
    assert not watch.check(well=False, takes=3.0, answered=False)
    assert watch.health.doubtful and watch.now == 6.0, "no new calls from here on"
    watch.check(well=False, takes=3.0, answered=False)
    assert watch.check(well=False, takes=3.0, answered=False)
    assert watch.health.down and watch.now == 12.0


def test_a_silent_one_that_answers_looks_is_looked_at_more_and_more_seldom() -> None:
    watch = Watch()
    watch.check(well=True)
    watch.health.called(0.0)
    times = []
    for _ in range(5):
        watch.check(well=True)
        times.append(watch.now)
    assert times == [2.0, 6.0, 14.0, 24.0, 34.0]
    watch.health.heard(watch.now)
    assert watch.health.due() == watch.now + SILENT_SECONDS
    watch.health.idle()
    assert watch.health.due() == 44.0


def test_a_look_that_gets_no_answer_says_nothing_of_one_that_is_heard() -> None:
    watch = Watch()
    watch.health.called(0.0)
    for _ in range(5):
        watch.now = max(watch.now, watch.health.due())
        watch.health.began(watch.now, HALF)
        watch.health.heard(watch.now + 1)
        assert not watch.health.ended(well=False, answered=False)
    assert not watch.health.doubtful
    assert [watch.check(well=False) for _ in range(3)] == [False, False, True], "but a bad answer does"


def test_a_bad_answer_counts_though_calls_bring_something_meanwhile() -> None:
    checks = HealthChecks(Health(down_after=1))
    checks.began(0.0, HALF)
    checks.heard(1.0)
    assert checks.ended(well=False) and checks.down


def test_one_that_could_not_be_reached_is_looked_at_next() -> None:
    watch = Watch()
    watch.check(well=True)
    watch.health.suspect()
    assert watch.health.due() == 1.0
    watch.health.wait_for_interval()
    assert watch.health.due() == 10.0


# ---- checks by other processes


def test_another_processes_look_counts_like_an_own_one() -> None:
    checks = HealthChecks(DEFAULT)
    told = [checks.note_peer_check(float(second), HALF, well=False, answered=False) for second in (1, 2, 3)]
    assert told == [False, False, True] and checks.down and checks.answered is False
    assert not checks.note_peer_check(10.0, HALF, well=True, answered=True) and checks.note_peer_check(
        11.0, HALF, well=True, answered=True
    )
    assert not checks.down


def test_who_looked_goes_on_and_the_others_wait_for_it() -> None:
    checks = HealthChecks(DEFAULT)
    checks.note_peer_check(100.0, HALF, well=True, answered=True)
    assert DEFAULT.interval is not None
    assert checks.due() == 100 + DEFAULT.interval + DEFAULT.timeout
    checks.note_peer_check(110.0, HALF, well=False, answered=False)
    assert checks.due() == 110 + AGAIN_SECONDS + DEFAULT.timeout, "the next one is soon, by the same process"
    assert checks.doubtful


def test_looks_at_one_time_are_one() -> None:
    """All see one hiccup, and it is not three failures in a row."""
    checks = HealthChecks(DEFAULT)
    checks.began(5.0, HALF)
    assert not checks.ended(well=False, answered=False)
    due = checks.due()
    assert not any(checks.note_peer_check(began, HALF, well=False, answered=False) for began in (4.0, 5.0, 5.5, 5.9))
    assert not checks.down and checks.due() == due
    assert not checks.note_peer_check(6.0, HALF, well=False, answered=False) and checks.note_peer_check(
        7.0, HALF, well=False, answered=False
    )


def test_with_a_short_interval_looks_half_of_it_apart_are_two() -> None:
    checks = HealthChecks(Health(interval=1.0, down_after=2))
    checks.began(5.0, HALF)
    assert not checks.ended(well=False, answered=False)
    assert not checks.note_peer_check(5.4, HALF, well=False, answered=False)
    assert checks.note_peer_check(5.5, HALF, well=False, answered=False)


def test_a_replica_that_talks_here_is_not_down_for_what_another_process_did_not_hear() -> None:
    checks = HealthChecks(Health(down_after=1))
    checks.called(0.0)
    checks.heard(9.0)
    assert not checks.note_peer_check(8.0, HALF, well=False, answered=False)
    assert checks.note_peer_check(10.0, HALF, well=False, answered=False)


def test_without_an_interval_nobody_waits_for_another() -> None:
    checks = HealthChecks(Health(interval=None))
    checks.note_peer_check(0.0, HALF, well=True, answered=True)
    assert checks.due() == inf
