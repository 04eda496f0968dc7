"""Pauses before restarts: doubled, bounded, and short again after a steady life."""

from __future__ import annotations

from nproxy.workers.backoff import FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS, Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff()
    assert [backoff.after(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_steady_life_begins_them_anew() -> None:
    backoff = Backoff(LONGEST_PAUSE)
    assert backoff.after(STEADY_SECONDS) == LONGEST_PAUSE
    assert [backoff.after(STEADY_SECONDS + 1), backoff.after(0.0)] == [FIRST_PAUSE, 2 * FIRST_PAUSE]
