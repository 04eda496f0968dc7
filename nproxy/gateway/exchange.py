"""One request being answered: what handlers, driver, metrics and the access log share about it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp.web_request import BaseRequest

from nproxy.choices.plan import Request
from nproxy.gateway.callers import ANYBODY, Caller
from nproxy.gateway.content import Content
from nproxy.gateway.cors import ALLOWED, exposed
from nproxy.gateway.response_writer import ResponseWriter
from nproxy.gateway.tracing import UNTRACED, Tracing
from nproxy.openai.errors import ApiError, invalid_request, model_not_found
from nproxy.telemetry.exemplars import Trace
from nproxy.upstreams.replicas import Replica

Permits = TypeVar("Permits")

SERVER = "nproxy"
CLIENT_LEFT = 499
"""The status in logs and metrics of a request whose client left before its answer was complete."""
MOST_UNREAD = 64 << 10
"""Bytes of a body for which a connection is kept, where the answer did not wait for them."""
NO_HEADERS: Mapping[str, str] = {}
_UNNAMED = ("other", "passthrough")
"""Endpoints that say little of the path."""


class ClientLeft(Exception):
    """The client is gone; nobody reads what would be written. Never an upstream's fault."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and what became of it.

    started: by `time.monotonic`. target: path and query. client: its address, as far as it is known. caller: whose key
    it shows. cors: what a browser is told in the answer. endpoint, upstream, model, mode: labels, "" while unknown.
    code: the status that was sent, 499 for a client that left. end_status: of the error that a stream ended with. cut:
    why the gateway broke the connection off, "" where it did not. headers: what the answer carries besides its own,
    their names in small letters. whole: all of it was sent, and who leaves then, while calls still end, has left
    nothing. introspection: it asks about the gateway itself, and is neither work in flight nor worth a line in the log.
    trace: which one it belongs to, for metrics, where that is recorded.

    For the log and for spans, None and 0 while unknown: n, choices (of all prompts), attempts (upstream calls, all of
    them), replicas (their labels, in the order of the first calls), finish_reasons (by index), tokens as the client is
    told, times in seconds. content: what was asked and answered, where that is kept.
    """

    request: BaseRequest
    id: str
    started: float
    closing: bool = False  # the server is draining: the connection ends with this answer
    introspection: bool = False
    target: str = ""
    client: str = ""
    caller: Caller = ANYBODY
    cors: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = "other"
    upstream: str = ""
    model: str = ""
    mode: str = ""
    code: int = 0
    outcome: str = ""
    end_status: int = 200
    cut: str = ""
    tracing: Tracing = UNTRACED
    content: Content | None = None
    n: int = 0
    choices: int = 0
    attempts: int = 0
    replicas: dict[str, None] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    seconds: float = 0.0
    trace: Trace | None = None
    headers: dict[str, str] = field(default_factory=dict)
    response: ResponseWriter | None = None
    whole: bool = False

    @property
    def broken(self) -> bool:
        """Whether a 200 was sent, and then something else than the whole answer, through no fault of the client's."""
        return self.code == 200 and self.outcome not in ("", "ok", "partial") and not 400 <= self.end_status < 500

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def unnamed_path(self) -> str | None:
        """The path where the endpoint's name does not say it, of who was let in.

        What strangers write is not told: it may be a key that somebody mistook for a path.
        """
        return None if self.endpoint not in _UNNAMED or self.caller is ANYBODY else self.path

    @property
    def legs(self) -> int:
        """Upstream calls that share the choices, as the client is told."""
        return int(self.headers.get("x-nproxy-legs", 0))

    @property
    def client_left(self) -> bool:
        """Whether the client left before its answer was whole, and was not cut off."""
        return self.code == CLIENT_LEFT and not self.cut

    def shows(self, headers: Iterable[tuple[str, str]]) -> None:
        """Take these over those of the plan: it may have gone otherwise. Log and metrics say what the client reads."""
        self.headers.update(headers)
        self.mode = self.headers["x-nproxy-mode"]

    def asks(self, request: Request) -> None:
        """Take what the client asks for."""
        self.n, self.choices = request.n, request.choices
        if self.tracing.spans is not None:
            self.tracing.spans.asked(request)
        if self.content is not None:
            self.content.heard(request)

    async def admitted(self, permits: Awaitable[Permits]) -> Permits:
        """Wait for permits, and note how long the wait was, be it in vain."""
        began = time.monotonic()
        try:
            held = await permits
        finally:
            self.queue_seconds = time.monotonic() - began
        if self.tracing.spans is not None:
            self.tracing.spans.admitted(self.choices or 1, self.queue_seconds)
        return held

    def placed(self, leg: int, replica: Replica) -> None:
        """A call has its replica."""
        self.replicas[replica.label] = None
        if self.tracing.spans is not None:
            self.tracing.spans.placed(leg, replica)

    @contextmanager
    def forwarding(self) -> Iterator[Mapping[str, str]]:
        """Note a call that passes the request on, for as long as the block runs; gives the headers of its trace."""
        self.attempts += 1
        spans = self.tracing.spans
        with nullcontext() if spans is None else spans.forwarding(self.upstream, self.request.method):
            yield self.tracing.headers(0)

    def forwarded(self, status: int) -> None:
        """The head of the answer to such a call has come."""
        if self.tracing.spans is not None:
            self.tracing.spans.answered(0, status)

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = NO_HEADERS, content_type: str = "application/json"
    ) -> None:
        """Send a whole answer. Raises ClientLeft."""
        response = self._written(status, {"Content-Type": content_type, **headers}, len(body))
        await self._finish(response, body)

    async def respond_error(self, error: ApiError) -> None:
        """Send an error in the envelope. Raises ClientLeft.

        What the client has still to send is read and forgotten; where that may be much, the connection ends with it.
        """
        length = self.request.content_length
        if not self.request.content.is_eof() and (length is None or length > MOST_UNREAD):
            self.closing = True
        await self.respond(error.status, error.envelope(), error.headers)

    def begin(self, status: int, headers: Mapping[str, str], *, length: int | None = None) -> None:
        """Prepare the head of an answer that is written piece by piece; it leaves with the first bytes.

        length: of the body, None where it is not known.
        """
        self._written(status, headers, length)

    async def write(self, data: bytes) -> None:
        """Write bytes of a begun answer, waiting while the client is slow. Raises ClientLeft."""
        try:
            await self._begun().write(data)
        except ConnectionError:
            raise ClientLeft from None

    def write_now(self, data: bytes) -> bool:
        """Write bytes of a begun answer without waiting; False, and none written, where the client is slow or gone."""
        return self._begun().write_now(data)

    def flush_head(self) -> None:
        """Send the head of a begun answer now, before any of its bytes. Raises ClientLeft."""
        try:
            self._begun().flush_head()
        except ConnectionError:
            raise ClientLeft from None

    async def finish(self, data: bytes = b"") -> None:
        """Write the last bytes of a begun answer. Raises ClientLeft."""
        await self._finish(self._begun(), data)

    def demand_model(self, model: str, fields: Iterable[str] = ()) -> None:
        """Raise ApiError 404 for a model that the caller may not use: to them it does not exist, as on their list.

        fields: those of the body that names it. Some servers (Go's encoding/json) take `MODEL` for `model`: 400 for a
        caller who may not use all.
        """
        if not self.caller.may_use(model):
            raise model_not_found(model)
        if self.caller.models is not None and any(name != "model" and name.lower() == "model" for name in fields):
            raise invalid_request("The model is named twice, in capital and in small letters.", param="model")

    def abort(self) -> None:
        """Break the connection: an answer that was cut must not look complete."""
        if self.request.transport is not None:
            self.request.transport.abort()

    def _begun(self) -> ResponseWriter:
        if self.response is None:
            raise RuntimeError("an answer is written before it has begun")
        return self.response

    def _headers(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        """All that an answer with these headers carries; what is the gateway's own stands over what is not."""
        own = {"server": SERVER, "x-request-id": self.id, **self.headers}
        told = [(name, value) for name, value in headers.items() if name.lower() not in own]
        told += own.items()
        if self.cors:
            told += self.cors.items()  # beside the Vary of an upstream's answer
            if ALLOWED in self.cors and (names := exposed({name.lower(): name for name, _ in told}.values())):
                told.append(("Access-Control-Expose-Headers", names))
        return told

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
