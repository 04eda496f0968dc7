"""Foreign errors become Failures here, once; nothing behind this file knows of aiohttp's exceptions.

A message is one sentence for the client. It holds no URL: a URL tells where things stand inside, and may hold more.
"""

from __future__ import annotations

import ssl

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponseError,
    ConnectionTimeoutError,
    InvalidURL,
    ServerDisconnectedError,
)

from nproxy.choices.events import Failure, FailureKind

FOREIGN = (ClientError, OSError, TimeoutError, ValueError)
"""What a request or a read may raise that means the upstream failed; everything else is a fault of our own."""


def before_the_head(error: Exception, *, reused: bool) -> Failure:
    """Translate what was raised before a response head came. reused: the connection had served before."""
    match error:
        case ConnectionTimeoutError():
            return timed_out("connect")
        case TimeoutError():
            return timed_out("first_event")
        case ClientConnectorDNSError():
            return _connect("The upstream's host name could not be resolved.")
        case ClientConnectorCertificateError() | ssl.SSLError():
            return _connect("No trusted TLS connection to the upstream came about.")
        case ClientConnectorError() if isinstance(error.os_error, ssl.SSLError):
            return _connect("No trusted TLS connection to the upstream came about.")
        case ClientConnectorError():
            return _connect("The upstream could not be reached.")
        case InvalidURL():
            return _connect("The upstream's address cannot be used.")
        case ClientResponseError() | ValueError():
            return malformed("The upstream's answer is not HTTP that can be read.")
        case _ if reused:
            kind = FailureKind.STALE
        case _:
            kind = FailureKind.RESET
    ended = "closed" if isinstance(error, ServerDisconnectedError) else "broke"
    return Failure(kind, f"The connection to the upstream {ended} before an answer came.")


def after_the_head(error: Exception) -> Failure:
    """Translate what was raised while the body was read."""
    if isinstance(error, ClientPayloadError):
        return Failure(FailureKind.CUT, "The upstream's answer ended before it was complete.")
    if isinstance(error, ClientResponseError | ValueError):
        return malformed("The upstream's answer is not HTTP that can be read.")
    return Failure(FailureKind.CUT, "The connection to the upstream broke in the middle of its answer.")


_WHAT_RAN_OUT = {
    "connect": "The upstream could not be reached in time.",
    "first_event": "The upstream's answer did not begin in time.",
    "idle": "The upstream fell silent in the middle of its answer.",
    "response": "The upstream's answer did not come in time.",
    "total": "The upstream's answer was not complete in time.",
}


def timed_out(which: str) -> Failure:
    """A time of the upstream's `timeouts` ran out; `which` is its key."""
    return Failure(FailureKind.TIMEOUT, _WHAT_RAN_OUT[which])


def malformed(message: str) -> Failure:
    """What came is not what the protocol says."""
    return Failure(FailureKind.MALFORMED, message)


def _connect(message: str) -> Failure:
    return Failure(FailureKind.CONNECT, message)
