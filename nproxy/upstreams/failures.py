"""Translates errors of HTTP and of the system into Failures; no code behind this module knows of them.

A message is one sentence for the client. It holds no URL, which would reveal the internal network and may hold secrets.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from dataclasses import replace

from nproxy.choices.events import Failure, FailureKind
from nproxy.upstreams.http.errors import (
    ConnectError,
    ConnectTimeoutError,
    CutError,
    DisconnectedError,
    HTTPError,
    LostError,
    MalformedError,
    Unreached,
    UploadError,
)

FOREIGN = (HTTPError, OSError, TimeoutError, ValueError)
"""What a request or a read may raise if the upstream failed. Everything else is a fault of this program."""


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""File descriptors of the process or the machine, memory, buffers, or local ports have run out."""


_UNREACHED: dict[Unreached, str] = {
    "name": "has a host name that could not be resolved",
    "address": "has an invalid address",
    "tls": "could not be reached over trusted TLS",
    "refused": "could not be reached",
}

_BROKE_OFF = "The body of the request broke off."


def before_the_head(error: Exception, *, stale: bool, upstream: str) -> Failure:
    """Translate what was raised before the head of a response came.

    stale: the connection had carried a call before, and brought nothing now. upstream: its name, which the client may
    know from x-nproxy-upstream.
    """
    who = f"The upstream '{upstream}'"
    match error:
        case _ if _ours(error):
            return replace(_connect(f"The gateway has no resources left to call the upstream '{upstream}'."), ours=True)
        case ConnectTimeoutError():
            return Failure(FailureKind.CONNECT_TIMEOUT, f"{who} could not be reached in time.", seconds=error.seconds)
        case TimeoutError():
            return timed_out("first_event")
        case ConnectError():
            return replace(_connect(f"{who} {_UNREACHED[error.why]}."), cause=_words(error.cause))
        case MalformedError() | ValueError():
            return malformed("The upstream's answer is not valid HTTP.")
        case UploadError():
            return Failure(FailureKind.RESET, _BROKE_OFF, ours=True)
        case _ if stale:
            kind = FailureKind.STALE
        case _:
            kind = FailureKind.RESET
    ended = "was closed" if isinstance(error, DisconnectedError) else "broke"
    return Failure(kind, f"The connection to the upstream '{upstream}' {ended} before an answer came.")


def _words(cause: OSError | None) -> str:
    """Return what the system says of an error, without the address that asyncio adds; "" if nothing."""
    match cause:
        case ssl.SSLCertVerificationError():
            words = cause.verify_message
        case ssl.SSLError():
            words = (cause.reason or "").replace("_", " ")
        case socket.gaierror():
            words = cause.strerror or ""
        case OSError(errno=int(number)) if number in errno.errorcode:
            words = os.strerror(number)
        case _:
            words = ""
    return words.lower()


def _ours(error: Exception) -> bool:
    """Whether this process or its machine ran out of something."""
    cause = error.cause if isinstance(error, ConnectError | LostError) else error
    return isinstance(cause, OSError) and cause.errno in _SHORTAGES


def after_the_head(error: Exception) -> Failure:
    """Translate what was raised while the body was read."""
    if isinstance(error, CutError):
        return Failure(FailureKind.CUT, "The upstream's answer ended before it was complete.")
    if isinstance(error, MalformedError | ValueError):
        return malformed("The upstream's answer is not valid HTTP.")
    if isinstance(error, UploadError):
        return Failure(FailureKind.CUT, _BROKE_OFF, ours=True)
    return Failure(FailureKind.CUT, "The connection to the upstream broke in the middle of its answer.")


_WHAT_RAN_OUT = {
    "first_event": "The upstream's answer did not begin in time.",
    "idle": "The upstream sent nothing more of its answer in time.",
    "response": "The upstream did not send its answer in time.",
    "total": "The upstream's answer was not complete in time.",
}


def timed_out(which: str) -> Failure:
    """A time limit of the upstream's `timeouts` ran out after the connection was established. which: its key."""
    return Failure(FailureKind.TIMEOUT, _WHAT_RAN_OUT[which])


def slow_upload() -> Failure:
    """The time limit for an answer ran out while the client was still sending its request."""
    return Failure(FailureKind.TIMEOUT, "The body of the request did not arrive in time.", ours=True)


def unavailable(upstream: str, seconds: float) -> Failure:
    """No replica may be called now. seconds: until one may."""
    message = f"The upstream '{upstream}' has no replica that can be called now."
    return Failure(FailureKind.UNAVAILABLE, message, retry_after=seconds)


def given_up(upstream: str, *, spoken: bool) -> Failure:
    """The replica was found down during a call. spoken: part of its answer had come."""
    message = f"A replica of the upstream '{upstream}' stopped answering, while others still answer."
    return Failure(FailureKind.CUT if spoken else FailureKind.DOWN, message)


def malformed(message: str) -> Failure:
    """What came violates the protocol."""
    return Failure(FailureKind.MALFORMED, message)


def redirected() -> Failure:
    """The upstream leads to another server, which nobody has selected."""
    return malformed("The upstream answered with a redirect, which is not followed.")


def oversize(message: str) -> Failure:
    """What came exceeds a limit of size."""
    return Failure(FailureKind.OVERSIZE, message)


def _connect(message: str) -> Failure:
    return Failure(FailureKind.CONNECT, message)
