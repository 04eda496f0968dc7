"""Tool calls: whether there must be one, and their stream deltas, mended so that the official SDKs assemble them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nproxy.openai.jsonvalue import JSON

CALLS = ("tool_calls", "function_call")
"""The keys of a message, or delta, that contain calls."""
_TOOLS = ("function", "custom")


def must_call(fields: Mapping[str, JSON]) -> bool:
    """Whether a chat request's answers must be tool calls: it requires some, or names the function."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        return not isinstance(allowed, dict) or allowed.get("mode") == "required"
    return choice == "required" or isinstance(fields.get("function_call"), dict)


@dataclass(slots=True)
class _Call:
    """One tool call of a choice: the client's index, and what of the call has been sent."""

    index: int
    id: str | None = None
    kind: str | None = None
    name: str | None = None


class ToolCalls:
    """The tool calls, or the legacy function call, of one choice so far; one object per choice.

    Indices count from 0 in the order of appearance, whatever the upstream counts from. A call's id, type and name are
    sent once: SDKs concatenate repeats, so a name passes again only if it continues. Under a known index, another id
    begins another call if a name comes with it. Without a name it is the same call, which keeps its id: some servers
    draw a new one for every delta.
    """

    __slots__ = ("_calls", "_count", "_legacy")

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}  # by the upstream's index: the newest call under it
        self._count = 0
        self._legacy = _Call(0)

    def mend_delta(self, delta: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return a chat's delta with its calls mended."""
        mended = {**delta}
        calls, function = delta.get("tool_calls"), delta.get("function_call")
        if isinstance(calls, list):
            mended["tool_calls"] = self.mend(calls)
        if isinstance(function, dict):
            mended["function_call"] = _called(self._legacy, function)
        return mended

    def mend(self, calls: list[JSON]) -> list[JSON]:
        """Return the delta's `tool_calls` list with the client's indices and without repeats; remember what passed.

        Entries that are not objects pass as they are: the client's library must judge them.
        """
        return [self._mend(call) if isinstance(call, dict) else call for call in calls]

    def _mend(self, sent: dict[str, JSON]) -> JSON:
        call = self._find(sent)
        mended: dict[str, JSON] = {"index": call.index}
        for key, value in sent.items():
            if key == "index":
                continue
            if key == "id":
                new = call.id is None and _text(value) is not None
                call.id = call.id or _text(value)
            elif key == "type":
                call.kind, new = _once(call.kind, value)
            elif key in _TOOLS and isinstance(value, dict):
                value, new = _called(call, value), True
            else:
                new = True
            if new:
                mended[key] = value
        return mended

    def _find(self, sent: dict[str, JSON]) -> _Call:
        """Return the call that an entry belongs to, or begin one.

        An entry without an index belongs to the call under the highest index, unless its id is another.
        """
        index = sent.get("index")
        key = index if type(index) is int else max(self._calls, default=0)
        call = self._calls.get(key)
        if call is not None and not (_another(call, sent) and (key != index or _named(sent))):
            return call
        call = self._calls[key] = _Call(self._count)
        self._count += 1
        return call


def _called(call: _Call, tool: dict[str, JSON]) -> JSON:
    """Return what an entry says of the tool that it calls, without the name if that has passed."""
    if "name" not in tool:
        return tool
    call.name, new = _once(call.name, tool["name"])
    return tool if new else {key: value for key, value in tool.items() if key != "name"}


def _another(call: _Call, sent: dict[str, JSON]) -> bool:
    """Whether an entry has another id than the call."""
    return call.id is not None and _text(sent.get("id")) not in (None, call.id)


def _named(sent: dict[str, JSON]) -> bool:
    """Whether an entry names what it calls."""
    called = [sent.get(kind) for kind in _TOOLS]
    return any(_text(tool.get("name")) is not None for tool in called if isinstance(tool, dict))


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None


def _once(known: str | None, value: JSON) -> tuple[str | None, bool]:
    """Return what is now known of a field that is sent once, and whether this value must be sent."""
    if not isinstance(value, str) or not value or value == known:
        return known, False  # a null or empty repeat says nothing, and confuses
    return (known or "") + value, True
