"""Whether and when a failed leg is tried again: before its first event, and after it has begun to answer."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import LOOP_DETECTED, RETRYABLE, Follows, follows, servers_error, spent

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 4.0
LONGEST_WITH_ANOTHER_SECONDS = 1.0  # if another upstream may be asked, which needs no wait
LONGEST_RETRY_AFTER_SECONDS = 10.0  # an upstream that asks for more is full: the client is told, and waits itself


def retryable(failure: Failure) -> bool:
    """Whether another attempt may succeed, if nothing of an answer has come.

    An error within a 200 follows the same rule as after the first event, so it may be retried with status 500 too: the
    request had been accepted.
    """
    if not failure.another and (failure.retry_after or 0.0) > LONGEST_RETRY_AFTER_SECONDS:
        return False
    if failure.kind is FailureKind.STATUS:
        again = failure.status in RETRYABLE and not spent(failure)
        return again or (failure.status == LOOP_DETECTED and failure.another)
    return follows(failure, Follows.AGAIN) or servers_error(failure)


def untried(failure: Failure) -> bool:
    """Whether the replica refused the connection, and there is one that may not: to ask it costs no server anything.

    It takes no attempt and no budget, and needs no pause. A connection that only times out does: that costs seconds.
    """
    return failure.kind is FailureKind.CONNECT and failure.another


def resumable(failure: Failure) -> bool:
    """Whether a call that had begun to answer broke off through no fault of the request."""
    return follows(failure, Follows.RESUMES) or servers_error(failure)


def pause_seconds(failure: Failure, earlier: int, jitter: float) -> float:
    """Return how long to wait before a retry: full jitter over a doubling span, and never less than `retry-after`.

    `retry-after` is about the replica that sent it, so it is ignored if another replica can take the leg. earlier:
    the number of retries before this one. jitter: from 0 up to 1.
    """
    span: float = min(FIRST_PAUSE_SECONDS * 2**earlier, LONGEST_PAUSE_SECONDS)
    return max(span * jitter, 0.0 if failure.another else failure.retry_after or 0.0)
