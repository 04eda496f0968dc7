"""Items, which make up a conversation of the Responses API, and the chat messages that they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.server.asking.chat import joined, wrong_text
from engine.server.asking.members import Members
from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import missing, wrong_type

Item = Mapping[str, JSON]
NewId = Callable[[str], str]
"""Returns a fresh id with this prefix."""

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
# Templates know "system"; newer models call the same role "developer".
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def read_items(value: JSON, new_id: NewId) -> list[Item]:
    """Return the input as items with ids; a text is the user's message.

    Raises ApiError 400 for what is no list of items.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise missing("input") if value is None else wrong_type("input", "a string or an array of items", value)
    return [_read_item(item, f"input.{number}", new_id) for number, item in enumerate(value)]


def check_ids(before: Sequence[Item], items: Sequence[Item]) -> None:
    """Raise ApiError 400 for an item that is in the conversation already, such as the last answer sent once more."""
    known = {item["id"] for item in before}
    for number, item in enumerate(items):
        if item["id"] in known:
            raise invalid_request(
                f"The conversation already has an item '{shorten(str(item['id']))}'; each may be in it once.",
                param=f"input.{number}.id",
            )
        known.add(item["id"])


def messages_of(items: Sequence[Item], instructions: str | None) -> list[dict[str, JSON]]:
    """Return the chat that a checked list of items amounts to, after its instructions.

    An assistant's consecutive reasoning, message and calls are one message. Raises ApiError 400 for the output of a
    call that does not exist.
    """
    messages: list[dict[str, Any]] = []
    opening: list[str] = []  # of the system; many templates take one message of it, at the beginning
    if instructions is not None:
        opening.append(instructions)
        messages.append({"role": "system", "content": instructions})
    calls: set[JSON] = set()
    for item in items:
        last = messages[-1] if messages else {}
        match item["type"]:
            case "function_call":
                calls.add(item["call_id"])
                turn = last if last.get("role") == "assistant" else _assistant(messages)
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                if item["call_id"] not in calls:
                    raise _no_call(str(item["call_id"]))
                content = _text(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case "reasoning":
                if thought := _text(item.get("content")):
                    _assistant(messages)["reasoning_content"] = thought
            case _:
                role, content = _ROLES[str(item["role"])], _text(item["content"])
                if role == "assistant" and last.get("role") == role and last["content"] is None:
                    last["content"] = content
                    continue
                if role == "system" and len(messages) <= 1 and last.get("role", role) == role:
                    opening.append(content)
                    if last:
                        continue
                messages.append({"role": role, "content": content})
    if opening:
        messages[0]["content"] = "\n\n".join(opening)
    return [{**message, "content": message["content"] or ""} if _silent(message) else message for message in messages]


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Begin an assistant's message."""
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _silent(message: Mapping[str, Any]) -> bool:
    """Whether a message is reasoning alone: neither text nor call."""
    return message["content"] is None and not message.get("tool_calls")


def _text(content: JSON) -> str:
    """Return the text of an item's checked content; parts are joined as in a chat."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return joined([str(part.get("text", "")) for part in parts if isinstance(part, dict)])


def _read_item(value: JSON, where: str, new_id: NewId) -> Item:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    kind = value.get("type") or "message"
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise invalid_request(
            f"'{where}' has the type '{shorten(str(kind))}', which is not supported by this engine.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    own = value.get("id")
    item = {**value, "id": own if isinstance(own, str) else new_id(_PREFIXES[str(kind)]), "type": kind}
    return {**item, "status": "completed", **read(item, Members(value, f"{where}."))}


def _read_message(item: Item, members: Members) -> Item:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid_request(
            f"'{members.called('role')}' must be one of {', '.join(_ROLES)}.", param=members.called("role")
        )
    if content is None:
        raise missing(members.called("content"))
    kind = "output_text" if role == "assistant" else "input_text"
    return {"content": _read_parts(content, members.called("content"), kind)}


def _read_call(item: Item, members: Members) -> Item:
    return {name: _read_text(members, name) for name in ("call_id", "name", "arguments")}


def _read_output(item: Item, members: Members) -> Item:
    output = item.get("output")
    if output is None:
        raise missing(members.called("output"))
    parts = output if isinstance(output, str) else _read_parts(output, members.called("output"), "input_text")
    return {"call_id": _read_text(members, "call_id"), "output": parts}


def _read_reasoning(item: Item, members: Members) -> Item:
    """Read a reasoning item.

    Encrypted content and summaries are not used: the model continues only from reasoning in full.
    """
    content, summary = item.get("content"), item.get("summary")
    parts = [] if content is None else _read_parts(content, members.called("content"), "reasoning_text")
    return {"summary": summary if isinstance(summary, list) else [], "content": parts}


_READERS: Mapping[str, Callable[[Item, Members], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
}
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def _read_text(members: Members, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise wrong_text(value, members.called(name))
    return value


def _read_parts(value: JSON, where: str, kind: str) -> list[JSON]:
    """Return the content's parts, which must all be texts; a bare text is one part of this kind."""
    if isinstance(value, str):
        return [_part(kind, value)]
    if not isinstance(value, list):
        raise wrong_type(where, "a string or an array of parts", value)
    parts: list[JSON] = []
    for number, part in enumerate(value):
        if not isinstance(part, dict):
            raise wrong_type(f"{where}.{number}", "an object", part)
        if part.get("type") not in (*_TEXT_PARTS, "refusal"):
            raise invalid_request(
                f"'{where}' may contain only text parts.", param=f"{where}.{number}", code="unsupported_parameter"
            )
        name = "refusal" if part["type"] == "refusal" else "text"
        text = part.get(name)
        if not isinstance(text, str):
            raise wrong_text(text, f"{where}.{number}.{name}")
        parts.append(_part(kind, text))
    return parts


def _part(kind: str, text: str) -> JSON:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _no_call(call: str) -> ApiError:
    return invalid_request(
        f"No tool call found for function call output with call_id '{shorten(call)}'.", param="input"
    )
