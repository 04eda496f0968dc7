"""One answer as it arrives: when each choice spoke and ended, its usage, or why there is no answer. Uses no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nproxy.cli.counts import Counts
from nproxy.cli.printable import printable
from nproxy.openai.chunks import MalformedChunk, UpstreamChunk, chunk_of, parse_answer
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError, wrap_foreign
from nproxy.openai.in_band import error_in_band
from nproxy.openai.sse import SSEDecoder, SSEError, SSEEvent
from nproxy.openai.stream_reading import Mark, read_event
from nproxy.openai.usage import Usage

_FAILED = "error"
"""The finish_reason with which nproxy ends a choice that it could not get."""


class Failure(NamedTuple):
    """Why a request has no answer. kind: a status or a word, by which failures are counted. words: for people."""

    kind: str
    words: str


@dataclass(slots=True)
class Spoken:
    """One choice of a stream; times in seconds from the moment when the request was due."""

    first: float | None = None
    """When the first text came."""
    last: float | None = None
    """When the last text came."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two successive texts."""
    finish: str | None = None
    """The finish_reason."""
    finished: float | None = None
    """When the finish_reason came."""

    @property
    def texts(self) -> int:
        """How many chunks brought text."""
        return 0 if self.first is None else 1 + len(self.gaps)


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one request; times in seconds from the moment when it was due."""

    late: float
    """When the request was sent."""
    seconds: float
    """When it had ended."""
    failure: Failure | None = None
    choices: Sequence[Spoken] = ()
    """The choices of a stream; empty for a JSON answer, which does not tell when they came."""
    width: int = 0
    """How many choices came."""
    usage: Usage | None = None

    @property
    def texts(self) -> int:
        """How many chunks brought text, over all choices."""
        return sum(choice.texts for choice in self.choices)


class Answer:
    """Takes an answer in pieces, each with the time at which it came.

    wanted: how many choices it must have. blot: removes secrets from the words of a failure.
    """

    def __init__(self, dialect: Dialect, wanted: int, blot: Callable[[str], str] = str) -> None:
        self._dialect = dialect
        self._wanted = wanted
        self._blot = blot
        self._decoder = SSEDecoder()
        self._choices: dict[int, Spoken] = {}
        self._counts = Counts()
        self._streamed = True
        self._ended_at = 0.0
        self.done = False
        self.failure: Failure | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is needed."""
        return self.done or self.failure is not None

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes of a stream."""
        try:
            for event in self._decoder.feed(data):
                self._event(event, now)
        except SSEError as error:
            self.fail("malformed", str(error))

    def whole(self, body: bytes, now: float) -> None:
        """Take a JSON answer."""
        self._streamed = False
        self._ended_at = now
        try:
            answer = parse_answer(body, self._dialect)
            if answer.error is None:
                self._take(answer, now)
            else:
                error = error_in_band(body)
                self.fail(str(error.status), error.message)
        except MalformedChunk as error:
            self.fail("malformed", f"the answer cannot be read: {error}")
        self.done = True

    def refuse(self, status: int, content_type: str, body: bytes) -> None:
        """Take an error answer."""
        self.fail(str(status), wrap_foreign(status, content_type, body).message)

    def fail(self, kind: str, words: str) -> None:
        """Note a failure; only the first one counts, and none after the end of the answer."""
        if not self.over:
            self.failure = Failure(kind, printable(self._blot(words), 200))

    def record(self, due: float, sent: float, ended: float) -> Record:
        """Return the result once nothing more comes; times are on the same clock as `now`."""
        if not self.over:
            for event in self._decoder.close():
                self._event(event, ended)
        came = [choice for index, choice in self._choices.items() if index < self._wanted and choice.finish != _FAILED]
        if not self.over and any(choice.finish is None for choice in came or [Spoken()]):
            self.fail("cut", "the stream ended before it was complete")
        if self.failure is None and len(came) < self._wanted:
            self.failure = Failure("short", f"{len(came)} of {self._wanted} choices came")
        if self.failure is not None:
            return Record(sent - due, ended - due, self.failure)
        usage = self._counts.whole(len(came))
        end = self._ended_at if self.done else ended
        choices = [_since(due, choice) for choice in came] if self._streamed else ()
        return Record(sent - due, end - due, None, choices, len(came), usage)

    def _event(self, event: SSEEvent, now: float) -> None:
        if self.over:
            return
        try:
            match read_event(event):
                case Mark.DONE:
                    self.done, self._ended_at = True, now
                case Mark.NOTHING:
                    pass
                case ApiError() as error:
                    self.fail(f"{error.status} in the stream", error.message)
                case chunk:
                    self._take(chunk_of(chunk, self._dialect), now)
        except MalformedChunk as error:
            self.fail("malformed", f"a chunk cannot be read: {error}")

    def _take(self, chunk: UpstreamChunk, now: float) -> None:
        self._counts.take(chunk if self._streamed else replace(chunk, choices=()))
        for part in chunk.choices:
            choice = self._choices.setdefault(part.index, Spoken())
            if any(part.delta.values()):
                if choice.last is None:
                    choice.first = now
                else:
                    choice.gaps.append(now - choice.last)
                choice.last = now
            if part.finish_reason is not None:
                choice.finish, choice.finished = part.finish_reason, now


def _since(due: float, choice: Spoken) -> Spoken:
    """Return the choice with times relative to `due`."""

    def since(at: float | None) -> float | None:
        return None if at is None else at - due

    return Spoken(since(choice.first), since(choice.last), choice.gaps, choice.finish, since(choice.finished))
