"""Whether and when a leg is tried again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import BY_KIND, Follows, no_room
from nproxy.choices.failures import upstreams_own
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS, pause_seconds, resumable, retryable


def limited(seconds: float, *, another: bool = False) -> Failure:
    return Failure(FailureKind.STATUS, "too many", status=429, retry_after=seconds, another=another)


def test_a_wait_that_a_server_asks_for_is_kept_and_one_that_is_too_long_is_the_clients() -> None:
    assert retryable(limited(3.0)) and pause_seconds(limited(3.0), 0, 0.5) == 3.0
    assert retryable(limited(10.0)) and not retryable(limited(10.1)), "as docs/fleet.md says"


def test_it_is_not_waited_for_where_another_replica_can_take_the_leg() -> None:
    failure = limited(LONGEST_RETRY_AFTER_SECONDS + 1, another=True)
    assert retryable(failure) and pause_seconds(failure, 0, 0.5) == 0.125


@pytest.mark.parametrize(("kind", "again"), [("down", True), ("unavailable", False), ("timeout", False)])
def test_a_leg_that_was_called_off_is_tried_again_and_one_that_nobody_can_take_is_not(kind: str, again: bool) -> None:
    assert retryable(Failure(FailureKind(kind), "it failed")) is again


@pytest.mark.parametrize(("status", "again"), [(None, True), (500, True), (503, True), (400, False), (499, False)])
def test_an_error_within_an_answer_is_made_good_if_it_is_the_servers(status: int | None, again: bool) -> None:
    failure = Failure(FailureKind.IN_BAND, "it failed", status=status)
    assert (retryable(failure), resumable(failure)) == (again, again)


@pytest.mark.parametrize("code", ["insufficient_quota", "exceeded_current_quota_error"])
def test_no_moment_is_better_where_all_is_spent(code: str) -> None:
    """As OpenAI and Moonshot have it; other 429s go by themselves."""
    body = json.dumps({"error": {"message": "You exceeded your quota.", "type": code, "code": code}}).encode()
    spent = Failure(FailureKind.STATUS, "no", status=429, body=body)
    assert not retryable(spent) and not no_room(spent) and upstreams_own(spent)
    limited = replace(spent, body=body.replace(code.encode(), b"rate_limit_exceeded"))
    assert retryable(limited) and no_room(limited)


def test_the_table_has_a_row_for_every_kind_of_failure() -> None:
    assert BY_KIND.keys() == set(FailureKind)
    by_status = {kind for kind, what in BY_KIND.items() if what is Follows.NOTHING}
    assert by_status >= {FailureKind.STATUS, FailureKind.IN_BAND}
    for what in BY_KIND.values():
        assert Follows.NOT_REACHED not in what or Follows.UNSERVED in what
        assert Follows.UNSERVED not in what or Follows.AGAIN in what, "what was never processed may be tried again"
