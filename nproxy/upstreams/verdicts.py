"""What the end of a call says about the replica that took it."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import GATEWAY_ERRORS, Follows, follows
from nproxy.choices.failures import upstreams_own

OK, CANCELLED, CLIENT_ERROR = "ok", "cancelled", "client_error"
"""Outcomes of calls in the metrics, beside the kinds of failures."""


def serves(failure: Failure | None) -> bool | None:
    """Whether a replica works, by the end of one call; None if that says nothing.

    failure: None for a call that brought what it should. A refusal with a status below 500 is an answer like any other.
    429 and 501 say nothing, and neither does a failure that the request itself or this process caused.
    """
    if failure is None:
        return True
    if failure.ours:
        return None
    if failure.kind in (FailureKind.STATUS, FailureKind.IN_BAND):
        status = failure.status or 500
        return None if status in (429, 501) else status < 500
    return False if follows(failure, Follows.BLAMES) else None


def outcome_of(failure: Failure | None) -> str:
    """How a call ended, for the metrics.

    A 4xx is a client's error, unless the server or nproxy's own key is at fault.
    """
    if failure is None:
        return OK
    if failure.kind is FailureKind.STATUS and 400 <= (failure.status or 0) < 500 and not upstreams_own(failure):
        return CLIENT_ERROR
    return failure.kind.value


def broken(failure: Failure) -> bool:
    """Whether a failure says nothing about capacity: it is not an error answer, or it is one of a proxy."""
    return failure.kind is not FailureKind.STATUS or failure.status in GATEWAY_ERRORS
