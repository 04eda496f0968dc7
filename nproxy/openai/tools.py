"""Tool calls: whether there must be one, and their stream deltas, mended so that the official SDKs assemble them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_not

from nproxy.openai.jsonvalue import JSON, dumps

CALLS = ("tool_calls", "function_call")
"""The keys of a message, or delta, that contain calls."""
_TOOLS, _ARGUMENTS = ("function", "custom"), ("arguments", "input")


def must_call(fields: Mapping[str, JSON]) -> bool:
    """Whether a chat request's answers must be tool calls: it requires some, or names the function."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        return not isinstance(allowed, dict) or allowed.get("mode") == "required"
    return choice == "required" or isinstance(fields.get("function_call"), dict)


def with_texts(said: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return a message, or delta, with texts as ids and arguments of calls. Values that need no change are the same.

    Arguments were objects in llama.cpp (ggml-org/llama.cpp#20198) and MiniMax (can1357/oh-my-pi#1779). Ids are numbers
    at NVIDIA (anomalyco/opencode#25786) and from MiniMax behind OpenRouter (Kilo-Org/kilocode#5816).
    """
    calls, function = said.get("tool_calls"), said.get("function_call")
    if isinstance(calls, list):
        texts = [_call_with_text(call) for call in calls]
        if any(map(is_not, texts, calls)):
            said = {**said, "tool_calls": texts}
    elif isinstance(calls, dict):
        said = {**said, "tool_calls": _call_with_text(calls)}
    return said if function is None else {**said, "function_call": _with_text(function)}


def _call_with_text(call: JSON) -> JSON:
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    text = _with_text(function)
    if type(id := call.get("id")) is int:
        call = {**call, "id": str(id)}
    return call if text is function else {**call, "function": text}


def _with_text(function: JSON) -> JSON:
    """Return a function that is called, with a text as its arguments."""
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), dict):
        return function
    return {**function, "arguments": dumps(arguments).decode()}


def place_of_arguments(delta: Mapping[str, JSON]) -> tuple[str, str, str] | None:
    """Return the keys that lead to the arguments in a chat's delta, if these are all that it says of its calls.

    It then has one entry, which says to which call it belongs by an index.
    """
    calls = delta.get("tool_calls")
    if not isinstance(calls, list) or len(calls) != 1 or not isinstance(call := calls[0], dict):
        return None
    if type(call.get("index")) is not int:
        return None
    said = [key for key, value in call.items() if value and key not in ("index", "id", "type")]
    if len(said) != 1 or said[0] not in _TOOLS or not isinstance(tool := call[said[0]], dict):
        return None
    told = [key for key, value in tool.items() if value]
    if len(told) != 1 or told[0] not in _ARGUMENTS or not isinstance(tool[told[0]], str):
        return None
    return "tool_calls", said[0], told[0]


@dataclass(slots=True, eq=False)
class _Call:
    """One tool call of a choice: the client's index, and what of the call has been sent."""

    index: int
    id: str | None = None
    kind: str | None = None
    name: str | None = None
    arguments: bool = False
    """Whether some have come."""


class ToolCalls:
    """The tool calls, or the legacy function call, of one choice so far; one object per choice.

    Indices count from 0 in the order of appearance, whatever the upstream counts from. A call's id, type and name are
    sent once: SDKs concatenate repeats, so a name passes again only if it continues. Under a known index, another id
    begins another call if a name comes with it. Without a name it is the same call, which keeps its id: some servers
    draw a new one for every delta. An empty id passes where a call begins: some clients want a string there.

    changed: whether something new was said of a call, so that a delta may be mended otherwise than the same one before;
    its reader sets it to False. Further arguments of a call change nothing.
    """

    __slots__ = ("_calls", "_count", "_legacy", "changed")

    def __init__(self) -> None:
        self.changed = False
        self._calls: dict[int, _Call] = {}  # by the upstream's index: the newest call under it
        self._count = 0
        self._legacy = _Call(0)

    def mend_delta(self, delta: Mapping[str, JSON]) -> dict[str, JSON]:
        """Return a chat's delta with its calls mended. A call that stands there by itself (TGI) becomes a list."""
        mended = {**delta}
        calls, function = delta.get("tool_calls"), delta.get("function_call")
        if isinstance(calls, dict):
            calls = [calls]
        if isinstance(calls, list):
            mended["tool_calls"] = self.mend(calls)
        if isinstance(function, dict):
            mended["function_call"] = _called(self._legacy, function)
        return mended

    def mend(self, calls: list[JSON]) -> list[JSON]:
        """Return the delta's `tool_calls` list with the client's indices and without repeats; remember what passed.

        Entries that are not objects pass as they are: the client's library must judge them.
        """
        taken: list[_Call] = []
        return [self._mend(call, taken) if isinstance(call, dict) else call for call in calls]

    def _mend(self, sent: dict[str, JSON], taken: list[_Call]) -> JSON:
        """taken: the calls of entries before it in the same list; its own is added."""
        count = self._count
        call = self._find(sent, taken)
        begins = count < self._count
        before = (call.id, call.kind, call.name, call.arguments)
        taken.append(call)
        mended: dict[str, JSON] = {"index": call.index}
        for key, value in sent.items():
            if key == "index":
                continue
            if key == "id":
                new = call.id is None and (_text(value) is not None or (begins and value == ""))
                call.id = call.id or _text(value)
            elif key == "type":
                call.kind, new = _once(call.kind, value)
            elif key in _TOOLS and isinstance(value, dict):
                value, new = _called(call, value), True
            else:
                new = True
            if new:
                mended[key] = value
        if begins or before != (call.id, call.kind, call.name, call.arguments):
            self.changed = True
        return mended

    def _find(self, sent: dict[str, JSON], taken: Sequence[_Call]) -> _Call:
        """Return the call that an entry belongs to, or begin one.

        An entry without an index belongs to the call under the highest index, unless its id is another, or it has a
        name and another entry of its list belongs there. Without an id, another name begins another call once the call
        has arguments: names may come in pieces, but before them. So does any name in the list that brought those,
        and of an entry without an index: Gemini's calls may all have index 0, or none, and an empty id.
        """
        index, name = sent.get("index"), _name(sent)
        key = index if type(index) is int else max(self._calls, default=0)
        call = self._calls.get(key)
        if call is not None:
            if _text(sent.get("id")) is not None:
                other = _another(call, sent) and (key != index or name is not None)
            elif call in taken:
                other = name is not None and (key != index or call.arguments)
            else:
                other = call.arguments and name is not None and (key != index or name != call.name)
            if not other:
                return call
        call = self._calls[key] = _Call(self._count)
        self._count += 1
        return call


def _called(call: _Call, tool: dict[str, JSON]) -> JSON:
    """Return what an entry says of the tool that it calls, without the name if that has passed."""
    call.arguments = call.arguments or any(_text(tool.get(key)) is not None for key in _ARGUMENTS)
    if "name" not in tool:
        return tool
    call.name, new = _once(call.name, tool["name"])
    return tool if new else {key: value for key, value in tool.items() if key != "name"}


def _another(call: _Call, sent: dict[str, JSON]) -> bool:
    """Whether an entry has another id than the call."""
    return call.id is not None and _text(sent.get("id")) not in (None, call.id)


def _name(sent: dict[str, JSON]) -> str | None:
    """Return the name of what an entry calls, if it has one."""
    called = (sent.get(kind) for kind in _TOOLS)
    names = (_text(tool.get("name")) for tool in called if isinstance(tool, dict))
    return next((name for name in names if name is not None), None)


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) and value else None


def _once(known: str | None, value: JSON) -> tuple[str | None, bool]:
    """Return what is now known of a field that is sent once, and whether this value must be sent."""
    if not isinstance(value, str) or not value or value == known:
        return known, False  # a null or empty repeat says nothing, and confuses
    return (known or "") + value, True
