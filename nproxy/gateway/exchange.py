"""One request that is being answered: the state that handlers and the driver share."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp.web_request import BaseRequest

from nproxy.choices.plan import Way
from nproxy.gateway.callers import ANYBODY, Caller
from nproxy.gateway.cors import ALLOWED, exposed
from nproxy.gateway.record import Record
from nproxy.gateway.response_writer import ResponseWriter
from nproxy.openai.errors import ApiError

SERVER = "nproxy"
MOST_UNREAD = 64 << 10
"""A connection is kept if at most so many bytes of the request body are unread when an error is sent."""
NO_HEADERS: Mapping[str, str] = {}
_UNNAMED = ("other", "passthrough")
"""Endpoint labels that do not identify the path."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and the state of its answer."""

    request: BaseRequest
    id: str
    """The request id."""
    record: Record
    """What log, metrics and spans say about it."""
    target: str = ""
    """Path and query."""
    introspection: bool = False
    """It asks about the gateway itself. It does not count as in flight, and is logged at debug level only."""
    closing: bool = False
    """The connection ends with this answer, because the server drains, for example."""
    caller: Caller = ANYBODY
    """The owner of the key that the request shows."""
    cors: Mapping[str, str] = field(default_factory=dict)
    """CORS headers of the answer."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of the answer; names in lower case."""
    response: ResponseWriter | None = None
    """The answer; None before it has begun."""
    only_pinged: bool = False
    """The answer is a stream of pings, between two upstreams: an event may be its end."""

    @property
    def path(self) -> str:
        """The target without the query."""
        return self.target.partition("?")[0]

    @property
    def unnamed_path(self) -> str:
        """The path, if the endpoint's name does not identify it and the caller was let in; else "".

        The paths of other clients are not logged: such a path may be a key that somebody mistook for a path.
        """
        return "" if self.record.endpoint not in _UNNAMED or self.caller is ANYBODY else self.path

    @property
    def shown_path(self) -> str:
        """The path; "" if it may be such a key."""
        return self.path if self.record.endpoint not in _UNNAMED else self.unnamed_path

    def shows(self, way: Way, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Tell the client in headers how its choices are made, as far as is known now. Log and metrics follow."""
        self.headers["x-nproxy-mode"] = self.record.mode = way.mode
        self.headers["x-nproxy-legs"] = str(way.legs)
        self.record.legs = way.legs
        if headers:
            self.headers.update(headers)

    @property
    def whole(self) -> bool:
        """Whether the whole answer was sent. A client that disconnects now, while calls end, does not count as left."""
        return self.response is not None and self.response.finished

    def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS, content_type: str = "application/json"
    ) -> Awaitable[None]:
        """Send a whole answer. Raises ClientLeft."""
        return self._written(status, {"Content-Type": content_type, **headers}, len(body)).finish(body)

    async def respond_error(self, error: ApiError) -> None:
        """Send an error in the error envelope. Raises ClientLeft.

        The rest of the request body is read and discarded. If that may be much, the connection ends with this answer.
        """
        length = self.request.content_length
        if not self.request.content.is_eof() and (length is None or length > MOST_UNREAD):
            self.closing = True
        self.record.error_code = error.code or ""
        await self.respond(error.status, error.envelope(), error.headers)

    def begin(self, status: int, headers: Mapping[str, str], *, length: int | None = None) -> None:
        """Prepare the head of an answer that is written piece by piece. It is sent with the first bytes.

        length: of the body; None if unknown.
        """
        self._written(status, headers, length)

    def write(self, data: bytes) -> Awaitable[None]:
        """Write bytes of an answer that has begun; wait while the client is slow. Raises ClientLeft."""
        return self._begun().write(data)

    def write_now(self, data: bytes) -> bool:
        """Write bytes of an answer that has begun, without waiting.

        Returns False, with nothing written, if the client is slow or gone.
        """
        return self._begun().write_now(data)

    def flush_head(self) -> None:
        """Send the head of an answer that has begun now, before any of its bytes. Raises ClientLeft."""
        self._begun().flush_head()

    def finish(self, data: bytes = b"") -> Awaitable[None]:
        """Write the last bytes of an answer that has begun. Raises ClientLeft."""
        return self._begun().finish(data)

    def abort(self) -> None:
        """Abort the connection: an answer that was cut must not look complete."""
        if self.request.transport is not None:
            self.request.transport.abort()

    def _begun(self) -> ResponseWriter:
        if self.response is None:
            raise RuntimeError("an answer is written before it has begun")
        return self.response

    def _headers(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return all headers of an answer. The gateway's own replace given ones of the same name."""
        own = {"server": SERVER, "x-request-id": self.id, **self.headers}
        complete = [(name, value) for name, value in headers.items() if name.lower() not in own]
        complete += own.items()
        if self.cors:
            complete += self.cors.items()  # added to, not replacing, the Vary of an upstream's answer
            if ALLOWED in self.cors and (names := exposed({name.lower(): name for name, _ in complete}.values())):
                complete.append(("Access-Control-Expose-Headers", names))
        return complete

    def _written(self, status: int, headers: Mapping[str, str], length: int | None) -> ResponseWriter:
        self.response = ResponseWriter(self.request, status, self._headers(headers), length, self.closing)
        self.record.code = status
        return self.response
