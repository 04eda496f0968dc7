"""What follows from a failure: one table by its kind, and the statuses of error answers that mean something to nproxy.

Each rule is used elsewhere: whether a leg is tried again or resumed in `retry.py`, what the client is told in
`failures.py`, what a failure says of a replica in `upstreams/verdicts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Flag, auto

from nproxy.choices.events import Failure, FailureKind


class Follows(Flag):
    """What may follow from the kind of a failure alone."""

    NOTHING = 0
    """Or it depends on the status."""
    NOT_REACHED = auto()
    """No connection was established."""
    UNSERVED = auto()
    """The server cannot have processed the request, or was found down while it did."""
    SILENT = auto()
    """The server gave no answer at all: it was not reached, or its answer did not come in time."""
    BLAMES = auto()
    """The replica is at fault: its circuit breaker counts it."""
    ELSEWHERE = auto()
    """The upstream is at fault: another one may succeed where this one failed."""
    AGAIN = auto()
    """Another attempt may succeed, if nothing of an answer has come. Not after a timeout: the server may still be at
    work on the first one."""
    RESUMES = auto()
    """A call that had begun to answer broke off through no fault of the request."""


_UNSERVED = Follows.UNSERVED | Follows.SILENT | Follows.BLAMES | Follows.ELSEWHERE | Follows.AGAIN
_BROKEN = Follows.BLAMES | Follows.ELSEWHERE | Follows.AGAIN | Follows.RESUMES

BY_KIND: Mapping[FailureKind, Follows] = {
    FailureKind.CONNECT: Follows.NOT_REACHED | _UNSERVED,
    FailureKind.CONNECT_TIMEOUT: Follows.NOT_REACHED | _UNSERVED,
    FailureKind.STALE: Follows.ELSEWHERE | Follows.AGAIN,
    FailureKind.RESET: _BROKEN,
    FailureKind.DOWN: _UNSERVED,
    FailureKind.UNAVAILABLE: Follows.ELSEWHERE,
    FailureKind.TIMEOUT: Follows.SILENT | Follows.BLAMES | Follows.ELSEWHERE | Follows.RESUMES,
    FailureKind.STATUS: Follows.NOTHING,
    FailureKind.CUT: _BROKEN,
    FailureKind.MALFORMED: _BROKEN,
    FailureKind.IN_BAND: Follows.NOTHING,
    FailureKind.INTERRUPTED: Follows.ELSEWHERE | Follows.RESUMES,
    FailureKind.SHORT: Follows.BLAMES | Follows.ELSEWHERE,
    FailureKind.DIFFERS: Follows.NOTHING,
    FailureKind.OVERSIZE: Follows.NOTHING,
    FailureKind.UNSCORED: Follows.NOTHING,
}


def follows(failure: Failure, what: Follows) -> bool:
    """Whether this follows from the kind of a failure."""
    return what in BY_KIND[failure.kind]


NO_CAPACITY = frozenset({429, 503, 529})
"""The server lacks capacity at the moment, and may say when it will have some."""
SERVICE_UNAVAILABLE = 503
"""The one of NO_CAPACITY that is also used for other faults: a proxy that reaches no server, a server being started."""
GATEWAY_ERRORS = frozenset({502, 504})
"""A proxy answers, whose server was not reached or did not answer."""
LOOP_DETECTED = 508
"""The way through this replica leads back to the caller; another replica's may not (RFC 5842, section 7.2)."""
RETRYABLE = NO_CAPACITY | GATEWAY_ERRORS
"""Another attempt may succeed; other error answers would only be repeated."""
UPSTREAM_AT_FAULT = RETRYABLE - {429} | {LOOP_DETECTED}
"""No fault of the request. Not 500: the request may cause it, elsewhere too."""
KEY_REFUSED = frozenset({401, 403})
"""The key is refused."""
ABOUT_THE_ACCOUNT = KEY_REFUSED | {402}
"""About one key, or about what it may spend."""

_SPENT = re.compile(rb'"(?:code|type)"\s*:\s*"(?:insufficient_quota|exceeded_current_quota_error)"')


def spent(failure: Failure) -> bool:
    """Whether it is a 429 as OpenAI and Moonshot send it for a quota that is used up: waiting does not help."""
    return failure.status == 429 and _SPENT.search(failure.body) is not None


def no_room(failure: Failure) -> bool:
    """Whether the upstream refused the call for lack of capacity, and may have accepted it at another moment."""
    return failure.kind is FailureKind.STATUS and failure.status in NO_CAPACITY and not spent(failure)


def servers_error(failure: Failure) -> bool:
    """Whether it is an error within a 200 that is the server's fault."""
    return failure.kind is FailureKind.IN_BAND and (failure.status or 500) >= 500
