"""One request that is being answered: the state that handlers, driver, metrics and the access log share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp.web_request import BaseRequest

from nproxy.gateway.callers import ANYBODY, Caller
from nproxy.gateway.content import Content
from nproxy.gateway.cors import ALLOWED, exposed
from nproxy.gateway.response_writer import ResponseWriter
from nproxy.gateway.tracing import UNTRACED, Tracing
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Request
from nproxy.telemetry.exemplars import Trace
from nproxy.upstreams.replicas import Replica

Permits = TypeVar("Permits")

SERVER = "nproxy"
CLIENT_LEFT = 499
"""The status in logs and metrics if the client disconnected before its answer was complete."""
MOST_UNREAD = 64 << 10
"""A connection is kept if at most so many bytes of the request body are unread when an error is sent."""
NO_HEADERS: Mapping[str, str] = {}
_UNNAMED = ("other", "passthrough")
"""Endpoint labels that do not identify the path."""


class ClientLeft(Exception):
    """The client has disconnected, so nothing can be written to it. Never an upstream's fault."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and the state of its answer. For the log and for spans, unknown numbers are None or 0."""

    request: BaseRequest
    id: str
    """The request id."""
    started: float
    """When the request began, by `time.monotonic`."""
    closing: bool = False
    """The connection ends with this answer, because the server drains, for example."""
    introspection: bool = False
    """It asks about the gateway itself. It does not count as in flight, and is logged at debug level only."""
    target: str = ""
    """Path and query."""
    client: str = ""
    """The client's address, as far as it is known."""
    caller: Caller = ANYBODY
    """The owner of the key that the request shows."""
    cors: Mapping[str, str] = field(default_factory=dict)
    """CORS headers of the answer."""
    endpoint: str = "other"
    """A label; "other" while unknown."""
    upstream: str = ""
    """A label: the upstream that was asked last; "" while unknown."""
    model: str = ""
    """A label; "" while unknown."""
    mode: str = ""
    """A label: relay, native, fanout or passthrough; "" while unknown."""
    code: int = 0
    """The status that was sent; 499 if the client disconnected or was cut off; 0 while unknown."""
    outcome: str = ""
    """For the log: ok, partial, ended, slow_reader, internal or a kind of failure; "" while unknown."""
    end_status: int = 200
    """The status of the error that a stream ended with; 200 if there is none."""
    error_code: str = ""
    """For the log: the code of an error of the gateway's own that was sent; "" if there is none."""
    cut: str = ""
    """Why the gateway broke the connection off; "" if it did not."""
    tracing: Tracing = UNTRACED
    """The place of the request in a trace."""
    content: Content | None = None
    """The prompt and the answer; None if they are not kept."""
    n: int = 0
    """Choices per prompt that were asked for."""
    choices: int = 0
    """Choices in all, over all prompts."""
    attempts: int = 0
    """Upstream calls in all, with retries and the calls at fallbacks."""
    replicas: dict[str, None] = field(default_factory=dict)
    """The labels of the replicas that were called, in the order of their first calls."""
    finish_reasons: dict[int, str] = field(default_factory=dict)
    """By the index of the choice."""
    prompt_tokens: int | None = None
    """As reported to the client."""
    completion_tokens: int | None = None
    """As reported to the client."""
    queue_seconds: float | None = None
    """How long the request waited for permits."""
    first_token_seconds: float | None = None
    """Time to first token, from the start of the request."""
    seconds: float = 0.0
    """From the start of the request to its end."""
    trace: Trace | None = None
    """The trace that metrics name in exemplars; None if no trace is recorded."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of the answer; names in lower case."""
    response: ResponseWriter | None = None
    """The answer; None before it has begun."""
    whole: bool = False
    """The whole answer was sent. If the client disconnects now, while calls still end, it does not count as left."""

    @property
    def broken(self) -> bool:
        """Whether a 200 was sent, but not the whole answer, through no fault of the client."""
        return self.code == 200 and self.outcome not in ("", "ok", "partial") and not 400 <= self.end_status < 500

    @property
    def path(self) -> str:
        """The target without the query."""
        return self.target.partition("?")[0]

    @property
    def unnamed_path(self) -> str | None:
        """The path, if the endpoint's name does not identify it and the caller was let in; else None.

        The paths of other clients are not logged: such a path may be a key that somebody mistook for a path.
        """
        return None if self.endpoint not in _UNNAMED or self.caller is ANYBODY else self.path

    @property
    def legs(self) -> int:
        """The number of legs that share the choices, as reported to the client."""
        return int(self.headers.get("x-nproxy-legs", 0))

    @property
    def client_left(self) -> bool:
        """Whether the client disconnected before it had the whole answer, and was not cut off."""
        return self.code == CLIENT_LEFT and not self.cut

    def shows(self, headers: Iterable[tuple[str, str]]) -> None:
        """Replace the plan's headers by these, as the actual way may differ from the plan. Log and metrics follow."""
        self.headers.update(headers)
        self.mode = self.headers["x-nproxy-mode"]

    def asks(self, request: Request) -> None:
        """Note what the client asks for."""
        self.n, self.choices = request.n, request.choices
        if self.tracing.spans is not None:
            self.tracing.spans.asked(request)
        if self.content is not None:
            self.content.asked(request)

    async def admitted(self, permits: Awaitable[Permits]) -> Permits:
        """Wait for permits, and note how long the wait was, even if it failed."""
        began = time.monotonic()
        try:
            held = await permits
        finally:
            self.queue_seconds = time.monotonic() - began
        if self.tracing.spans is not None:
            self.tracing.spans.admitted(self.choices or 1, self.queue_seconds)
        return held

    def placed(self, leg: int, replica: Replica) -> None:
        """Note the replica of a call."""
        self.replicas[replica.label] = None
        if self.tracing.spans is not None:
            self.tracing.spans.placed(leg, replica)

    @contextmanager
    def forwarding(self) -> Iterator[Mapping[str, str]]:
        """Note a call that passes the request through; it lasts as long as the block. Yields its trace headers."""
        self.attempts += 1
        spans = self.tracing.spans
        with nullcontext() if spans is None else spans.forwarding(self.upstream, self.request.method):
            yield self.tracing.headers(0)

    def forwarded(self, status: int) -> None:
        """Note that the head of the answer to such a call has come."""
        if self.tracing.spans is not None:
            self.tracing.spans.answered(0, status)

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS, content_type: str = "application/json"
    ) -> None:
        """Send a whole answer. Raises ClientLeft."""
        response = self._written(status, {"Content-Type": content_type, **headers}, len(body))
        await self._finish(response, body)

    async def respond_error(self, error: ApiError) -> None:
        """Send an error in the error envelope. Raises ClientLeft.

        The rest of the request body is read and discarded. If that may be much, the connection ends with this answer.
        """
        length = self.request.content_length
        if not self.request.content.is_eof() and (length is None or length > MOST_UNREAD):
            self.closing = True
        self.error_code = error.code or ""
        await self.respond(error.status, error.envelope(), error.headers)

    def begin(self, status: int, headers: Mapping[str, str], *, length: int | None = None) -> None:
        """Prepare the head of an answer that is written piece by piece. It is sent with the first bytes.

        length: of the body; None if unknown.
        """
        self._written(status, headers, length)

    async def write(self, data: bytes) -> None:
        """Write bytes of an answer that has begun; wait while the client is slow. Raises ClientLeft."""
        try:
            await self._begun().write(data)
        except ConnectionError:
            raise ClientLeft from None

    def write_now(self, data: bytes) -> bool:
        """Write bytes of an answer that has begun, without waiting.

        Returns False, with nothing written, if the client is slow or gone.
        """
        return self._begun().write_now(data)

    def flush_head(self) -> None:
        """Send the head of an answer that has begun now, before any of its bytes. Raises ClientLeft."""
        try:
            self._begun().flush_head()
        except ConnectionError:
            raise ClientLeft from None

    async def finish(self, data: bytes = b"") -> None:
        """Write the last bytes of an answer that has begun. Raises ClientLeft."""
        await self._finish(self._begun(), data)

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
        self.response = ResponseWriter(self.request, status, self._headers(headers), length=length, closes=self.closing)
        self.code = status
        return self.response

    async def _finish(self, response: ResponseWriter, data: bytes) -> None:
        try:
            await response.finish(data)
        except ConnectionError:
            raise ClientLeft from None
        self.whole = True
