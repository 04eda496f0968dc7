"""What the end of a call says of the replica that took it."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind
from nproxy.openai.jsonvalue import loads

_FAILURES = frozenset(
    {
        FailureKind.CONNECT,
        FailureKind.RESET,
        FailureKind.DOWN,
        FailureKind.TIMEOUT,
        FailureKind.CUT,
        FailureKind.MALFORMED,
        FailureKind.SHORT,
    }
)


def serves(failure: Failure | None) -> bool | None:
    """Whether a replica does its work, by the end of one call; None where that says nothing.

    failure: None for a call that brought what it should. A refusal by a status below 500 is an answer like any other;
    429 and 501 say nothing, and neither does what was the request's own doing.
    """
    if failure is None:
        return True
    if failure.kind is FailureKind.STATUS:
        return _status_serves(failure.status or 500)
    if failure.kind is FailureKind.IN_BAND:
        return _status_serves(_code(failure.body))
    return False if failure.kind in _FAILURES else None


def _status_serves(status: int) -> bool | None:
    if status in (429, 501):
        return None
    return status < 500


def _code(body: bytes) -> int:
    """The status that an error in the midst of an answer names; 500 where it names none."""
    try:
        value = loads(body)
    except ValueError:
        return 500
    error = value.get("error", value) if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500
