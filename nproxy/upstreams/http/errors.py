"""What can go wrong with an HTTP call. Which of it a client is told, and how, is said in `upstreams/failures.py`."""

from __future__ import annotations

from typing import Literal

Unreached = Literal["name", "address", "tls", "refused"]
"""Why no connection came about: the name has no address, it is no name, TLS was not agreed on, or anything else."""


class HTTPError(Exception):
    """A call failed at the transport level, or what came is no HTTP."""


class ConnectError(HTTPError):
    """No connection came about. cause: what the system said, None where it said nothing."""

    def __init__(self, why: Unreached, cause: OSError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.cause = cause


class ConnectTimeoutError(HTTPError):
    """No connection came about within so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class LateError(HTTPError):
    """The call's own time was over before there was a connection."""


class DisconnectedError(HTTPError):
    """The other side closed the connection, in order, before an answer's head was whole."""


class LostError(HTTPError):
    """The connection broke, or was given up, before the answer was whole. cause: what the system said of it."""

    def __init__(self, cause: OSError | None = None) -> None:
        super().__init__("lost")
        self.cause = cause


class CutError(HTTPError):
    """The other side closed the connection, in order, before the answer's body was whole."""


class MalformedError(HTTPError):
    """What came is no HTTP answer, or one with more in its head than is taken."""
