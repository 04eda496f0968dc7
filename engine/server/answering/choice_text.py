"""What one choice has said in all, and its JSON: a chat's message, or the delta of one chunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from engine.server.answering.output import Piece, ReportedToken
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart
from nproxy.openai.jsonvalue import JSON


@dataclass(slots=True)
class ChoiceText:
    """A choice, folded from its pieces, which are kept too; grows as they come."""

    parts: list[Part] = field(default_factory=list)
    reported: list[ReportedToken] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Add the next piece of this choice."""
        self.parts += piece.parts
        self.reported += piece.reported
        self.finish, self.stop_reason = piece.finish, piece.stop_reason
        self.pieces.append(piece)


def text_of(parts: Iterable[Part]) -> str:
    """Return what is said to the user, joined."""
    return "".join([part.text for part in parts if isinstance(part, Content)])


def delta(parts: Iterable[Part]) -> dict[str, JSON]:
    """Return the parts of one chunk as one delta of a chat; what does not occur has no key."""
    content, reasoning, calls = _apart(parts)
    fields: dict[str, JSON] = {}
    if reasoning:
        fields["reasoning_content"] = reasoning
    if content:
        fields["content"] = content
    if calls:
        fields["tool_calls"] = [{"index": index, **call.json()} for index, call in calls.items()]
    return fields


def message(parts: Iterable[Part]) -> dict[str, JSON]:
    """Return all of a choice as a message; its content is null if there are calls and no text."""
    content, reasoning, calls = _apart(parts)
    fields: dict[str, JSON] = {"content": content or (None if calls else "")}
    if reasoning:
        fields["reasoning_content"] = reasoning
    if calls:
        fields["tool_calls"] = [call.json() for call in calls.values()]
    return fields


@dataclass(slots=True)
class _Call:
    """What some parts say about one call. start: None if it began in earlier ones."""

    start: ToolStart | None
    arguments: str = ""

    def json(self) -> dict[str, JSON]:
        if self.start is None:
            return {"function": {"arguments": self.arguments}}
        function: dict[str, JSON] = {"name": self.start.name, "arguments": self.arguments}
        return {"id": self.start.id, "type": "function", "function": function}


def _apart(parts: Iterable[Part]) -> tuple[str, str, dict[int, _Call]]:
    """Return content, reasoning, and the calls by their index."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, _Call] = {}
    for part in parts:
        match part:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case ToolStart(index):
                calls[index] = _Call(part)
            case ToolArguments(index, text):
                calls.setdefault(index, _Call(None)).arguments += text
            case _:
                assert_never(part)
    return "".join(content), "".join(reasoning), calls
