"""The growing choices of one request. No clock: the time of each chunk is passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.counts import Counts
from nproxy.cli.printable import printable
from nproxy.openai.chunks import UpstreamChoice, UpstreamChunk
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.usage import Usage

_REASONING = ("reasoning_content", "reasoning")
"""Field names that servers use for the reasoning before an answer."""


class Tokens(NamedTuple):
    """How many tokens a choice has. exact: confirmed by the server's own count."""

    number: int
    exact: bool


@dataclass(slots=True)
class Choice:
    """One choice so far."""

    index: int
    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    error: str | None = None
    pieces: int = 0
    """How many chunks brought text."""
    first: float | None = None
    """When the first chunk with text came."""
    last: float | None = None
    """When the last chunk with text came."""

    def take(self, piece: UpstreamChoice, now: float) -> None:
        """Add what a chunk says of this choice."""
        content = piece.delta.get("content")
        text = _written(content) + _text(piece.delta, "refusal")
        reasoning = next((found for name in _REASONING if (found := _text(piece.delta, name))), "") + _thought(content)
        if text or reasoning:
            self.text += text
            self.reasoning += reasoning
            self.pieces += 1
            self.first, self.last = now if self.first is None else self.first, now
        if piece.finish_reason is not None:
            self.finish = piece.finish_reason
        if isinstance(error := piece.extra.get("error"), dict):
            self.error = _text(error, "message") or "the choice failed"

    def speed(self, tokens: int) -> float | None:
        """Return tokens per second from the first one on; None if there are too few to tell."""
        if self.first is None or self.last is None or self.last <= self.first or tokens < 2:
            return None
        return (tokens - 1) / (self.last - self.first)


@dataclass(slots=True)
class Answers:
    """All choices of one request."""

    choices: list[Choice]
    began: float
    """When the request was sent."""
    ended: float | None = None
    """When it was over."""
    stopped: bool = False
    """Whether the user stopped it."""
    broken: str | None = None
    """The error that ended it."""
    _counts: Counts = field(default_factory=Counts)

    @classmethod
    def of(cls, n: int, began: float) -> Self:
        """Create n choices of which nothing has come yet."""
        return cls([Choice(index) for index in range(n)], began)

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return any(choice.pieces or choice.finish for choice in self.choices)

    @property
    def usage(self) -> Usage | None:
        """What the server has counted so far, over all choices."""
        return self._counts.whole(len(self.choices))

    def take(self, chunk: UpstreamChunk, now: float) -> None:
        """Add a chunk of a stream. Raises ChatFailed for a choice that was not asked for."""
        for piece in chunk.choices:
            if piece.index >= len(self.choices):
                raise ChatFailed(f"the server sent choice {piece.index}, but {len(self.choices)} were requested")
            self.choices[piece.index].take(piece, now)
        self._counts.take(chunk)

    def tokens(self) -> list[Tokens]:
        """Return the tokens of each choice.

        Servers count over all choices. They usually send one token per piece of text, and one more, without text, when
        a choice ends by itself. If that agrees with the server's count, it is exact; otherwise the server's count is
        divided in proportion to the pieces.
        """
        pieces = [choice.pieces for choice in self.choices]
        if (usage := self.usage) is None:
            return [Tokens(number, exact=False) for number in pieces]
        with_ends = [choice.pieces + (choice.finish == "stop") for choice in self.choices]
        for counted in (pieces, with_ends):
            if sum(counted) == usage.completion:
                return [Tokens(number, exact=True) for number in counted]
        share = usage.completion / max(1, sum(pieces))
        return [Tokens(round(number * share), exact=len(pieces) == 1) for number in pieces]

    def failure(self) -> str | None:
        """Return why this is not what was asked for, once it is over; None if it is."""
        if self.stopped or self.broken is not None:
            return self.broken
        if failed := next((choice for choice in self.choices if choice.error), None):
            return f"choice {failed.index} failed: {printable(failed.error or '', 400)}"
        missing = [choice for choice in self.choices if choice.finish is None]
        if not missing:
            return None
        if all(choice.pieces == 0 for choice in missing):
            came = len(self.choices) - len(missing)
            hint = "; nproxy gives it n: nproxy serve --upstream URL" if came == 1 else ""
            return f"the server sent {came} of {len(self.choices)} choices{hint}"
        return f"the stream ended before {_named([choice.index for choice in missing])} did"


def _named(indices: list[int]) -> str:
    return f"choice{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _written(content: JSON) -> str:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(_text(part, "text") for part in _parts(content, "text"))


def _thought(content: JSON) -> str:
    """Return the reasoning in a content that is a list of parts, as Mistral's reasoning models send it."""
    return "".join(_written(part.get("thinking")) for part in _parts(content, "thinking"))


def _parts(content: JSON, kind: str) -> list[dict[str, JSON]]:
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") == kind]


def _text(values: Mapping[str, JSON], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""
