"""What the end of a call says about the replica that took it."""

from __future__ import annotations

from nproxy.choices.events import NOT_REACHED, Failure, FailureKind

_FAILURES = frozenset(
    {
        *NOT_REACHED,
        FailureKind.RESET,
        FailureKind.DOWN,
        FailureKind.TIMEOUT,
        FailureKind.CUT,
        FailureKind.MALFORMED,
        FailureKind.SHORT,
    }
)
_SILENT = NOT_REACHED | {FailureKind.DOWN, FailureKind.TIMEOUT}


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
    return False if failure.kind in _FAILURES else None


def broken(failure: Failure) -> bool:
    """Whether a failure says nothing about capacity: it is not an error answer, or it is one of a proxy."""
    return failure.kind is not FailureKind.STATUS or failure.status in (502, 504)


def silent(failure: Failure) -> bool:
    """Whether the replica gave no answer at all: it was not reached, or its answer did not come in time."""
    return failure.kind in _SILENT
