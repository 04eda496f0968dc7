"""What the interview asks, and what comes back: plain values, without an HTTP library."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from nproxy.cli.printable import printable
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import wrap_foreign
from nproxy.openai.jsonvalue import JSON, loads

VARIED = "Reply with nothing but random words, at least thirty of them, and no introduction."
"""A prompt whose sampled answers differ from each other and reach the token limit."""
LONG = "Count from 1 to 3000, one number per line, and leave none out."


@dataclass(frozen=True, slots=True)
class Get:
    """A GET. path: below the base URL, or below the server's root. after: seconds to wait before it."""

    path: str
    root: bool = False
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Post:
    """A generation call; `path` is below the base URL."""

    path: str
    body: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Leave:
    """Open a stream, ask `watch` after its first event, and close the stream. The reply is that of `watch`.

    If the stream does not begin, the reply is the stream's own.
    """

    post: Post
    watch: Get


@dataclass(frozen=True, slots=True)
class Beside:
    """Open a stream, ask `other` after its first event, and read the stream to its end. The reply is the stream's.

    If the stream breaks off after its head, the reply holds what came.
    """

    post: Post
    other: Post


@dataclass(frozen=True, slots=True)
class Together:
    """Ask all of these at the same time. The reply is the first one's; its `others` are the remaining replies."""

    posts: Sequence[Post]
    after: float = 0.0


Question = Get | Post | Leave | Beside | Together


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    """The HTTP status; 0 if there was no answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    """Seconds until the last byte."""
    failure: str = ""
    """Why there was no answer."""
    others: Sequence[Reply] = ()
    """The replies to the questions that were asked at the same time."""

    @property
    def ok(self) -> bool:
        """Whether the server accepted the request. A 200 with an error object does not count."""
        return self.status == 200 and not self.error_inside

    @property
    def error_inside(self) -> bool:
        """Whether a 200 holds an error object, and so is an error."""
        value = self.json()
        return self.status == 200 and isinstance(value, dict) and value.get("error") is not None

    @property
    def refused(self) -> bool:
        """Whether the server will never do this: a 4xx about the request, or a handler that failed on it."""
        return self.error_inside or self.status in (400, 404, 405, 413, 415, 422, 500, 501)

    @property
    def content_type(self) -> str:
        """The media type and its parameters, in lower case."""
        return self.headers.get("content-type", "").lower()

    def json(self) -> JSON:
        """Return the body as JSON; None if it is not JSON."""
        try:
            value: JSON = loads(self.body)
        except ValueError:
            return None
        return value

    def reason(self) -> str:
        """Return why the reply is not ok, in a few words that are safe for a terminal."""
        if self.failure:
            return self.failure
        message = wrap_foreign(self.status, self.content_type, self.body).message
        return f"{self.status}: {printable(message)}"


T = TypeVar("T")
Asking = Generator[Question, Reply, T]
"""A part of the interview: yields questions, receives a reply to each, and returns what it found."""


@dataclass(frozen=True, slots=True)
class Form:
    """How to ask for generation at one endpoint: a body to which each question adds its fields."""

    dialect: Dialect
    model: str
    tokens: int
    """Maximum number of tokens of an answer."""
    length_field: str = "max_tokens"
    extra: Mapping[str, JSON] = field(default_factory=dict)
    """Fields that the server needs in order to sample."""
    prompt: str = VARIED

    def ask(self, **fields: JSON) -> Post:
        """Return the call with these fields; a field that is None is left out."""
        body: dict[str, JSON] = {"model": self.model}
        if self.dialect is Dialect.CHAT:
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = self.prompt
        body |= {self.length_field: self.tokens, "temperature": 1.0, **self.extra, **fields}
        return Post(PATHS[self.dialect], {name: value for name, value in body.items() if value is not None})

    def short(self) -> Self:
        """Return the same form for answers of one token."""
        return replace(self, tokens=1)


PATHS = {Dialect.CHAT: "/chat/completions", Dialect.COMPLETIONS: "/completions"}
