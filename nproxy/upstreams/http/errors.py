"""What can go wrong with an HTTP call. `upstreams/failures.py` decides what a client is told of it."""

from __future__ import annotations

from typing import Literal

Unreached = Literal["name", "address", "tls", "refused"]
"""Why no connection was established: the name has no address, it is not a name, TLS failed, or anything else."""


class HTTPError(Exception):
    """A call failed at the transport level, or what came is not HTTP."""


class ConnectError(HTTPError):
    """No connection was established. cause: the system's error; None if there was none."""

    def __init__(self, why: Unreached, cause: OSError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.cause = cause


class ConnectTimeoutError(HTTPError):
    """No connection was established within so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class LateError(HTTPError):
    """The call's own deadline passed before a connection was established."""


class DisconnectedError(HTTPError):
    """The peer closed the connection in an orderly way before the head of an answer was complete."""


class LostError(HTTPError):
    """The connection broke, or was given up, before the answer was complete. cause: the system's error or None."""

    def __init__(self, cause: OSError | None = None) -> None:
        super().__init__("lost")
        self.cause = cause


class UploadError(HTTPError):
    """The call was given up, because the body of the request broke off or is not as long as stated."""


class CutError(HTTPError):
    """The peer closed the connection in an orderly way before the body of the answer was complete."""


class MalformedError(HTTPError):
    """What came is not an HTTP answer, or its head exceeds a limit."""
