"""Which of several failures a client is told of, and in which words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import (
    ABOUT_THE_ACCOUNT,
    KEY_REFUSED,
    UPSTREAM_AT_FAULT,
    Follows,
    follows,
    servers_error,
)
from nproxy.openai.errors import (
    ApiError,
    invalid_request,
    upstream_auth,
    upstream_error,
    upstream_timeout,
    upstream_unavailable,
    wrap_foreign,
)

_REQUEST_AT_FAULT, _REFUSED, _LIMITED, _BROKEN, _LATE = range(5)  # most telling first


def rank(failure: Failure) -> int:
    """Return how telling a failure is, 0 most: what the client can mend, keys, limits, upstream faults, lateness."""
    if failure.kind in (FailureKind.TIMEOUT, FailureKind.CONNECT_TIMEOUT):
        return _LATE
    if failure.kind is FailureKind.UNSCORED:
        return _REQUEST_AT_FAULT
    status = failure.status
    if failure.kind not in (FailureKind.STATUS, FailureKind.IN_BAND) or status is None:
        return _BROKEN
    if status in KEY_REFUSED:
        return _BROKEN if failure.own_key else _REFUSED
    if status == 429:
        return _LIMITED
    if status in (408, 504):
        return _LATE
    return _REQUEST_AT_FAULT if 400 <= status < 500 else _BROKEN


def upstreams_own(failure: Failure) -> bool:
    """Whether another upstream may succeed where this one failed.

    It may if this one is at fault, lacks capacity, refuses nproxy's own key, or that key has nothing left to spend. An
    error within a 200 follows the rule by which the same upstream would be called again.
    """
    if failure.status == 429:
        return True
    if failure.kind is FailureKind.STATUS:
        return failure.status in UPSTREAM_AT_FAULT or (failure.own_key and failure.status in ABOUT_THE_ACCOUNT)
    return follows(failure, Follows.ELSEWHERE) or servers_error(failure)


def decisive(failure: Failure) -> bool:
    """Whether no other failure could be more telling, so that there is nothing to wait for."""
    return rank(failure) == _REQUEST_AT_FAULT


def most_telling(failures: Sequence[Failure]) -> Failure:
    """Return the failure to show; of equals, the first."""
    return min(failures, key=rank)


def as_error(failures: Sequence[Failure], *, retries_spent: bool) -> ApiError:
    """Return the client's error for what went wrong. `failures` contains at least one.

    retries_spent: nproxy has tried again, or would have but must not, so a client's SDK need not do so at once too.
    This does not apply to a limit on the client's requests (429): it needs a longer pause than nproxy makes, and SDKs
    make one.
    """
    shown = most_telling(failures)
    error = _worded(shown)
    headers = dict(error.headers)
    waits = [failure.retry_after for failure in failures if failure.retry_after is not None]
    if waits and (error.status == 429 or error.status >= 500):
        headers["retry-after"] = str(math.ceil(max(waits)))
    if retries_spent and error.status != 429:
        headers["x-should-retry"] = "false"
    error.headers = headers
    return error


class Losses:
    """The failures of one request's legs that stand.

    partial: the choices that came are better than none. gathered: the time is over in which failures are weighed
    together.
    """

    def __init__(self, partial: bool) -> None:
        self.partial = partial
        self.gathered = False
        self.failures: list[Failure] = []

    def add(self, failure: Failure) -> None:
        """Note a failure."""
        self.failures.append(failure)

    @property
    def conclusive(self) -> bool:
        """Whether nothing that may still come could change what the client is told."""
        return self.gathered or any(map(decisive, self.failures))

    @property
    def upstreams_own(self) -> bool:
        """Whether the upstream is at fault for all of them."""
        return all(map(upstreams_own, self.failures))

    @property
    def kind(self) -> FailureKind:
        """The kind of the failure that the client is told of."""
        return most_telling(self.failures).kind

    def error(self, *, retries_spent: bool) -> ApiError:
        """Return the client's error for all of them."""
        return as_error(self.failures, retries_spent=retries_spent)


def _worded(failure: Failure) -> ApiError:
    match failure.kind:
        case FailureKind.STATUS:
            return _from_status(failure)
        case FailureKind.IN_BAND:
            return wrap_foreign(_would_have_been(failure), failure.content_type, failure.body)
        case FailureKind.CONNECT | FailureKind.STALE | FailureKind.RESET | FailureKind.DOWN:
            return upstream_unavailable(failure.message)
        case FailureKind.UNAVAILABLE:
            return upstream_unavailable(failure.message, status=503)
        case FailureKind.TIMEOUT | FailureKind.CONNECT_TIMEOUT:
            return upstream_timeout(failure.message)
        case (
            FailureKind.CUT
            | FailureKind.INTERRUPTED
            | FailureKind.SHORT
            | FailureKind.MALFORMED
            | FailureKind.DIFFERS
            | FailureKind.OVERSIZE
        ):
            return upstream_error(failure.message)
        case FailureKind.UNSCORED:
            return invalid_request(failure.message, param="best_of")
        case _:
            assert_never(failure.kind)


def _from_status(failure: Failure) -> ApiError:
    status = failure.status or 502
    if status in KEY_REFUSED and failure.own_key:
        return upstream_auth()
    if status < 400:  # a redirect is not followed: the prompt would go where nobody sent it
        return upstream_error("The upstream answered with a redirect.")
    return wrap_foreign(status, failure.content_type, failure.body)


def _would_have_been(failure: Failure) -> int:
    """Return the status for an error within a 200: its own if the client can mend it, otherwise 502.

    A refused key becomes 502 too, because it is not known whose it was.
    """
    status = failure.status or 500
    return status if status < 500 and status not in KEY_REFUSED else 502
