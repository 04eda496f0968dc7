"""Whether and when a failed leg is tried again: before its first event, and after it has begun to answer."""

from __future__ import annotations

import re

from nproxy.choices.events import Failure, FailureKind

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 4.0
LONGEST_WITH_ANOTHER_SECONDS = 1.0  # if another upstream may be asked, which needs no wait
LONGEST_RETRY_AFTER_SECONDS = 10.0  # an upstream that asks for more is full: the client is told, and waits itself

_STATUSES = frozenset({429, 502, 503, 504, 529})  # "try again later"; other answers would only be repeated
NO_ROOM = frozenset({429, 503, 529})
"""The server lacks capacity at the moment, and may say when it will have some."""
UNSURE = 503
"""The one of NO_ROOM that is also used for other faults: a proxy that reaches no server, a server being started."""
_SPENT = re.compile(rb'"(?:code|type)"\s*:\s*"(?:insufficient_quota|exceeded_current_quota_error)"')
"""As in a 429 of OpenAI and Moonshot: the account's quota is spent, so waiting does not help."""
LOOP_DETECTED = 508
"""The way through this replica leads back to the caller; another replica's may not (RFC 5842, section 7.2)."""
_KINDS = frozenset(
    {
        FailureKind.CONNECT,
        FailureKind.CONNECT_TIMEOUT,
        FailureKind.STALE,
        FailureKind.RESET,
        FailureKind.DOWN,
        FailureKind.CUT,
        FailureKind.MALFORMED,
    }
)
_KINDS_BEGUN = frozenset(
    {FailureKind.CUT, FailureKind.RESET, FailureKind.TIMEOUT, FailureKind.MALFORMED, FailureKind.INTERRUPTED}
)


def retryable(failure: Failure) -> bool:
    """Whether another attempt may succeed, if nothing of an answer has come.

    Timeouts are not retried, because the upstream may still be at work on the first attempt, unless no connection was
    established. An error within a 200 follows the same rule as after the first event, so it may be retried with status
    500 too: the request had been accepted.
    """
    if not failure.another and (failure.retry_after or 0.0) > LONGEST_RETRY_AFTER_SECONDS:
        return False
    if failure.kind is FailureKind.STATUS:
        again = failure.status in _STATUSES and not _spent(failure)
        return again or (failure.status == LOOP_DETECTED and failure.another)
    return failure.kind in _KINDS or servers_error(failure)


def no_room(failure: Failure) -> bool:
    """Whether the upstream refused the call for lack of capacity, and may have accepted it at another moment."""
    return failure.kind is FailureKind.STATUS and failure.status in NO_ROOM and not _spent(failure)


def _spent(failure: Failure) -> bool:
    return failure.status == 429 and _SPENT.search(failure.body) is not None


def resumable(failure: Failure) -> bool:
    """Whether a call that had begun to answer broke off through no fault of the request."""
    return failure.kind in _KINDS_BEGUN or servers_error(failure)


def pause_seconds(failure: Failure, attempt: int, jitter: float) -> float:
    """Return how long to wait before attempt + 1: full jitter over a doubling span, and never less than `retry-after`.

    `retry-after` is about the replica that sent it, so it is ignored if another replica can take the leg. attempt: the
    one that failed, counted from 0. jitter: from 0 up to 1.
    """
    span: float = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
    return max(span * jitter, 0.0 if failure.another else failure.retry_after or 0.0)


def servers_error(failure: Failure) -> bool:
    """Whether it is an error within a 200 that is the server's fault."""
    return failure.kind is FailureKind.IN_BAND and (failure.status or 500) >= 500
