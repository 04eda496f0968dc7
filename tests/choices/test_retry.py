"""Whether and when a leg is tried again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failures import upstreams_own
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS, no_room, pause_seconds, retryable


def limited(seconds: float, *, another: bool = False) -> Failure:
    return Failure(FailureKind.STATUS, "too many", status=429, retry_after=seconds, another=another)


def test_a_wait_that_a_server_asks_for_is_kept_and_one_that_is_too_long_is_the_clients() -> None:
    assert retryable(limited(3.0)) and pause_seconds(limited(3.0), 0, 0.5) == 3.0
    assert not retryable(limited(LONGEST_RETRY_AFTER_SECONDS + 1))


def test_it_is_not_waited_for_where_another_replica_can_take_the_leg() -> None:
    failure = limited(LONGEST_RETRY_AFTER_SECONDS + 1, another=True)
    assert retryable(failure) and pause_seconds(failure, 0, 0.5) == 0.125


@pytest.mark.parametrize(("kind", "again"), [("down", True), ("unavailable", False), ("timeout", False)])
def test_a_leg_that_was_called_off_is_tried_again_and_one_that_nobody_can_take_is_not(kind: str, again: bool) -> None:
    assert retryable(Failure(FailureKind(kind), "it failed")) is again


@pytest.mark.parametrize("code", ["insufficient_quota", "exceeded_current_quota_error"])
def test_no_moment_is_better_where_all_is_spent(code: str) -> None:
    """As OpenAI and Moonshot have it; other 429s go by themselves."""
    body = json.dumps({"error": {"message": "You exceeded your quota.", "type": code, "code": code}}).encode()
    spent = Failure(FailureKind.STATUS, "no", status=429, body=body)
    assert not retryable(spent) and not no_room(spent) and upstreams_own(spent)
    limited = replace(spent, body=body.replace(code.encode(), b"rate_limit_exceeded"))
    assert retryable(limited) and no_room(limited)
