"""What the interview asks, and what comes back: plain values, no HTTP library."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from nproxy.cli.printable import printable
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import wrap_foreign
from nproxy.openai.jsonvalue import JSON, loads

VARIED = "Reply with nothing but random words, at least thirty of them, and no introduction."
"""A prompt whose answers differ when they are drawn, and run into the limit of tokens."""
LONG = "Count from 1 to 3000, one number per line, and leave none out."


@dataclass(frozen=True, slots=True)
class Get:
    """A GET. path: behind the base URL, or behind the server's root. after: seconds to wait before it."""

    path: str
    root: bool = False
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Post:
    """A generation call; `path` stands behind the base URL."""

    path: str
    body: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Leave:
    """Open a stream, ask `watch` once its first event is there, and close it. The reply is that of `watch`.

    Where the stream does not begin, the reply is the stream's own.
    """

    post: Post
    watch: Get


@dataclass(frozen=True, slots=True)
class Beside:
    """Open a stream, ask `other` once its first event is there, and read the stream to its end. The reply is its.

    Where the stream breaks off behind its head, the reply holds what came.
    """

    post: Post
    other: Post


@dataclass(frozen=True, slots=True)
class Together:
    """Ask all of these at the same time. The reply is the first one's, and `others` of it are those of the others."""

    posts: Sequence[Post]
    after: float = 0.0


Question = Get | Post | Leave | Beside | Together


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. status: 0 where none came, and then `failure` says why. seconds: until its last byte.

    others: those to what was asked at the same time.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    failure: str = ""
    others: Sequence[Reply] = ()

    @property
    def ok(self) -> bool:
        """The server took the request. An error object in a 200 is none."""
        return self.status == 200 and not self.error_inside

    @property
    def error_inside(self) -> bool:
        """Whether a 200 holds an error object, which makes it none."""
        value = self.json()
        return self.status == 200 and isinstance(value, dict) and value.get("error") is not None

    @property
    def refused(self) -> bool:
        """The server will not do this, now or later: a 4xx about the request, or a handler that broke on it."""
        return self.error_inside or self.status in (400, 404, 405, 413, 415, 422, 500, 501)

    @property
    def content_type(self) -> str:
        """The media type and its parameters, in lower case."""
        return self.headers.get("content-type", "").lower()

    def json(self) -> JSON:
        """The body as JSON; None where it is none."""
        try:
            value: JSON = loads(self.body)
        except ValueError:
            return None
        return value

    def said(self) -> str:
        """Why it is not ok, in a few words fit for a terminal."""
        if self.failure:
            return self.failure
        message = wrap_foreign(self.status, self.content_type, self.body).message
        return f"{self.status}: {printable(message)}"


T = TypeVar("T")
Asking = Generator[Question, Reply, T]
"""A part of the interview: gives questions, takes a reply to each, and returns what it found."""


@dataclass(frozen=True, slots=True)
class Form:
    """How generation is asked for at one endpoint: a body to which each question adds its fields.

    tokens: most tokens of an answer. extra: fields without which the server would not do its best.
    """

    dialect: Dialect
    model: str
    tokens: int
    length_field: str = "max_tokens"
    extra: Mapping[str, JSON] = field(default_factory=dict)
    prompt: str = VARIED

    def ask(self, **fields: JSON) -> Post:
        """The question with these fields; one that is None is left out."""
        said: dict[str, JSON] = {"prompt": self.prompt}
        if self.dialect is Dialect.CHAT:
            said = {"messages": [{"role": "user", "content": self.prompt}]}
        body = {"model": self.model, **said, self.length_field: self.tokens, "temperature": 1.0, **self.extra, **fields}
        return Post(PATHS[self.dialect], {name: value for name, value in body.items() if value is not None})

    def short(self) -> Self:
        """The same for answers of one token."""
        return replace(self, tokens=1)


PATHS = {Dialect.CHAT: "/chat/completions", Dialect.COMPLETIONS: "/completions"}
