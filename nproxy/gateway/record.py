"""The record of one request: what the access log, the metrics and the spans say about it and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from nproxy.choices.commands import WITHOUT_ERROR
from nproxy.gateway.content import Content
from nproxy.gateway.tracing import UNTRACED, Tracing
from nproxy.openai.requests import Request
from nproxy.upstreams.replicas import Replica

CLIENT_LEFT = 499
"""The status in logs and metrics if the client disconnected before its answer was complete."""


@dataclass(slots=True, eq=False)
class Record:
    """What is known of one request. Unknown numbers are None or 0."""

    started: float
    """When the request began, by `time.monotonic`."""
    tracing: Tracing = UNTRACED
    """Where the request stands in a trace."""
    content: Content | None = None
    """The prompt and the answer; None if they are not kept."""
    client: str = ""
    """The client's address, as far as it is known."""
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
    """ok, partial, ended, slow_reader, internal or a kind of failure; "" while unknown."""
    end_status: int = 200
    """The status of the error that a stream ended with; 200 if there is none."""
    error_code: str = ""
    """The code of an error of the gateway's own that was sent; "" if there is none."""
    cut: str = ""
    """Why the gateway broke the connection off; "" if it did not."""
    n: int = 0
    """Choices per prompt that were asked for."""
    choices: int = 0
    """Choices in all, over all prompts."""
    legs: int = 0
    """The number of legs that share the choices, as reported to the client."""
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

    @property
    def broken(self) -> bool:
        """Whether a 200 was sent, but not the whole answer, through no fault of the client."""
        return self.code == 200 and self.outcome not in WITHOUT_ERROR and not 400 <= self.end_status < 500

    @property
    def client_left(self) -> bool:
        """Whether the client disconnected before it had the whole answer, and was not cut off."""
        return self.code == CLIENT_LEFT and not self.cut

    def asked(self, request: Request) -> None:
        """Note what the client asks for."""
        self.n, self.choices = request.n, request.choices
        if self.tracing.spans is not None:
            self.tracing.spans.asked(request)
        if self.content is not None:
            self.content.asked(request)

    def waited(self, seconds: float, *, admitted: bool) -> None:
        """Note how long the request waited for permits. admitted: it got them."""
        self.queue_seconds = seconds
        if admitted and self.tracing.spans is not None:
            self.tracing.spans.admitted(self.choices or 1, seconds)

    def assigned(self, leg: int, replica: Replica) -> None:
        """Note the replica of a call."""
        self.replicas[replica.label] = None
        if self.tracing.spans is not None:
            self.tracing.spans.assigned(leg, replica)

    @contextmanager
    def forwarding(self, method: str) -> Iterator[Mapping[str, str]]:
        """Note a call that passes the request through; it lasts as long as the block. Yields its trace headers."""
        self.attempts += 1
        spans = self.tracing.spans
        with nullcontext() if spans is None else spans.forwarding(self.upstream, method):
            yield self.tracing.headers(0)

    def forwarded(self, status: int) -> None:
        """Note that the head of the answer to such a call has come."""
        if self.tracing.spans is not None:
            self.tracing.spans.answered(0, status)

    def lost(self) -> None:
        """Note that the client has not got the whole answer: it disconnected, or was cut off."""
        self.code = CLIENT_LEFT
        self.outcome = self.cut or self.outcome
