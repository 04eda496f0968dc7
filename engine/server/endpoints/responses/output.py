"""A response while it is computed: parts in, items and the events about them out. No IO."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.server.endpoints.responses.items import NewId
from engine.text.parsers.parts import Content, Part, Reasoning, ToolArguments, ToolStart
from nproxy.openai.jsonvalue import JSON

Event = tuple[str, dict[str, JSON]]
"""A stream event: its type after "response.", and its members."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How items of a kind are named, and where their text is: the field, the part around it, and its event."""

    type: str
    prefix: str
    field: str
    part: str | None
    event: str


_MESSAGE = _Kind("message", "msg", "text", "output_text", "output_text")
_REASONING = _Kind("reasoning", "rs", "text", "reasoning_text", "reasoning_text")
_CALL = _Kind("function_call", "fc", "arguments", None, "function_call_arguments")
_KINDS: Mapping[type[object], _Kind] = {
    Content: _MESSAGE,
    Reasoning: _REASONING,
    ToolStart: _CALL,
    ToolArguments: _CALL,
}


@dataclass(slots=True)
class _Item:
    """One item as it grows. call: the part that began it, if it is a call."""

    kind: _Kind
    id: str
    index: int
    call: ToolStart | None
    text: str = ""
    logprobs: list[JSON] = field(default_factory=list)

    def json(self, status: str) -> dict[str, JSON]:
        """Return the item; while in progress without its parts, which have events of their own."""
        item: dict[str, JSON] = {"id": self.id, "type": self.kind.type, "status": status}
        if self.call is not None:
            return item | {"call_id": self.call.id, "name": self.call.name, "arguments": self.text}
        if self.kind is _MESSAGE:
            item["role"] = "assistant"
        else:
            item["summary"] = []
        return item | {"content": [] if status == "in_progress" else [self.part()]}

    def part(self) -> dict[str, JSON]:
        """Return the one part of a message, or of a reasoning item."""
        part: dict[str, JSON] = {"type": self.kind.part, "text": self.text}
        return part | {"annotations": [], "logprobs": list(self.logprobs)} if self.kind is _MESSAGE else part

    def event(self, type: str, /, **members: JSON) -> Event:
        """Return an event about the item, with the index of its one part."""
        where: dict[str, JSON] = {"item_id": self.id, "output_index": self.index}
        return type, where | ({"content_index": 0} if self.kind.part else {}) | members


class Items:
    """The output of one response. done: the complete items."""

    def __init__(self, new_id: NewId) -> None:
        self.done: list[dict[str, JSON]] = []
        self._new_id = new_id
        self._open: _Item | None = None

    def add(self, parts: Sequence[Part], logprobs: Sequence[JSON] = ()) -> Iterator[Event]:
        """Process what the choice says next; logprobs: of these parts' tokens, shown with what is said to the user."""
        for part in parts:
            item = self._open
            if item is None or isinstance(part, ToolStart) or item.kind is not _KINDS[type(part)]:
                yield from self._close("completed")
                item = yield from self._begin(_KINDS[type(part)], part)
            if isinstance(part, ToolStart):
                continue
            item.text += part.text
            fields: dict[str, JSON] = {}
            if item.kind is _MESSAGE:
                item.logprobs += logprobs
                fields, logprobs = {"logprobs": list(logprobs)}, ()
            yield item.event(f"{item.kind.event}.delta", delta=part.text, **fields)
        if logprobs and self._open is not None and self._open.kind is _MESSAGE:
            self._open.logprobs += logprobs  # of tokens that show nothing, above all the last one

    def end(self, *, complete: bool) -> Iterator[Event]:
        """End the output. An answer without any part is an empty message."""
        if self._open is None and not self.done:
            yield from self._begin(_MESSAGE, None)
        yield from self._close("completed" if complete else "incomplete")

    def _begin(self, kind: _Kind, part: Part | None) -> Generator[Event, None, _Item]:
        call = part if isinstance(part, ToolStart) else None
        self._open = item = _Item(kind, self._new_id(kind.prefix), len(self.done), call)
        yield "output_item.added", {"output_index": item.index, "item": item.json("in_progress")}
        if kind.part:
            yield item.event("content_part.added", part=item.part())
        return item

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        fields: dict[str, JSON] = {item.kind.field: item.text}
        if item.call is not None:
            fields["name"] = item.call.name
        elif item.kind is _MESSAGE:
            fields["logprobs"] = list(item.logprobs)
        yield item.event(f"{item.kind.event}.done", **fields)
        if item.kind.part:
            yield item.event("content_part.done", part=item.part())
        whole = item.json(status)
        self.done.append(whole)
        yield "output_item.done", {"output_index": item.index, "item": whole}
