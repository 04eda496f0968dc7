"""Which of several failures a client is told of, and how it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from nproxy.choices.events import Failure, FailureKind
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
    """How telling a failure is, 0 most: what the client can mend, keys, limits, the upstream's faults, lateness."""
    if failure.kind is FailureKind.TIMEOUT:
        return _LATE
    if failure.kind is FailureKind.UNSCORED:
        return _REQUEST_AT_FAULT
    status = failure.status
    if failure.kind is not FailureKind.STATUS or status is None:
        return _BROKEN
    if status in (401, 403):
        return _BROKEN if failure.own_key else _REFUSED
    if status == 429:
        return _LIMITED
    if status in (408, 504):
        return _LATE
    return _REQUEST_AT_FAULT if 400 <= status < 500 else _BROKEN


def decisive(failure: Failure) -> bool:
    """Whether no other failure could be more telling, so that there is nothing to wait for."""
    return rank(failure) == _REQUEST_AT_FAULT


def most_telling(failures: Sequence[Failure]) -> Failure:
    """The failure to show; of equals the first."""
    return min(failures, key=rank)


def as_error(failures: Sequence[Failure], *, retries_spent: bool) -> ApiError:
    """The client's error for what went wrong; `failures` holds at least one.

    retries_spent: nproxy has tried again, or would have and must not; a client's SDK need not do so at once too.
    """
    shown = most_telling(failures)
    error = _worded(shown)
    headers = dict(error.headers)
    waits = [failure.retry_after for failure in failures if failure.retry_after is not None]
    if error.status in (429, 503) and waits:
        headers["retry-after"] = str(math.ceil(max(waits)))
    if retries_spent:
        headers["x-should-retry"] = "false"
    error.headers = headers
    return error


def _worded(failure: Failure) -> ApiError:
    match failure.kind:
        case FailureKind.STATUS:
            return _from_status(failure)
        case FailureKind.IN_BAND:
            return wrap_foreign(502, failure.content_type, failure.body)
        case FailureKind.CONNECT | FailureKind.STALE | FailureKind.RESET:
            return upstream_unavailable(failure.message)
        case FailureKind.TIMEOUT:
            return upstream_timeout(failure.message)
        case FailureKind.CUT | FailureKind.MALFORMED | FailureKind.SHORT | FailureKind.OVERSIZE:
            return upstream_error(failure.message)
        case FailureKind.UNSCORED:
            return invalid_request(failure.message, param="best_of")
        case _:
            assert_never(failure.kind)


def _from_status(failure: Failure) -> ApiError:
    status = failure.status or 502
    if status in (401, 403) and failure.own_key:
        return upstream_auth()
    if status < 400:  # a redirect, which is never followed: the prompt would go where nobody sent it
        return upstream_error("The upstream answered with a redirect.")
    return wrap_foreign(status, failure.content_type, failure.body)
