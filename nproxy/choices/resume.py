"""Resuming: which failures of a leg that has begun to answer can be made good, and what is kept of it for that."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Literal

from nproxy.choices.continuation import Script
from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.plan import Request
from nproxy.choices.records import Record
from nproxy.choices.replay import Transcript
from nproxy.openai.jsonvalue import loads

Resume = Literal["off", "replay", "continue"]
"""How a leg goes on that was cut: not at all; asked again with its seed; asked with what it said as a prefix."""

_KINDS = frozenset(
    {FailureKind.CUT, FailureKind.RESET, FailureKind.TIMEOUT, FailureKind.MALFORMED, FailureKind.INTERRUPTED}
)
_REQUEST_AT_FAULT = re.compile(
    r"invalid|bad_?request|validation|not_?found|permission|authenti|content_?(?:filter|policy)|context|too_?long", re.I
)


def resumable(failure: Failure) -> bool:
    """Whether a call that has begun to answer broke off by no fault of the request."""
    return failure.kind in _KINDS or (failure.kind is FailureKind.IN_BAND and _servers_fault(failure.body))


def recorder(request: Request, how: Resume) -> Callable[[], Record] | None:
    """What begins the record of a choice; None where nothing can be missed, or nothing is made good."""
    if not request.stream or how == "off":
        return None
    return Transcript if how == "replay" else partial(Script, request.dialect)


def _servers_fault(body: bytes) -> bool:
    """Whether an in-band error is the server's: by its code where it has one that is a status, else by its words."""
    try:
        told = loads(body)
    except ValueError:
        return True
    error = told.get("error", told) if isinstance(told, dict) else told
    if not isinstance(error, dict):
        return True
    said = [error.get(key) for key in ("code", "status", "status_code", "type")]
    codes = [int(value) for value in said if isinstance(value, int) or (isinstance(value, str) and value.isdigit())]
    if codes:
        return codes[0] >= 500
    return not any(_REQUEST_AT_FAULT.search(value) for value in said if isinstance(value, str))
