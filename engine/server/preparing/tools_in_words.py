"""Tools for a model whose chat template does not support them: they are described in words, and calls are
plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from engine.server.asking.chat import Message
from engine.server.asking.tools import Tools
from nproxy.openai.jsonvalue import JSON

_INTRODUCTION = """\
These functions can be called, each with arguments by its JSON schema:
{functions}
To call functions, answer with a JSON array of calls and nothing else, such as
[{{"name": "function_name", "arguments": {{"argument": "value"}}}}]
The user then sends their results. Where no function is needed, answer in words."""


def in_words(messages: Sequence[Message], tools: Tools | None) -> tuple[Message, ...]:
    """Return the messages with the tools in the system's, earlier calls in the assistant's, and results in the user's.

    Results in a row become one message, because many templates require alternating turns. Without tools, calls and
    results the messages stay unchanged.
    """
    turns: list[Message] = []
    called: dict[str, JSON] = {}  # function names by the ids of calls
    for of_tools, some in groupby(messages, lambda message: message["role"] == "tool"):
        if of_tools:
            turns.append({"role": "user", "content": "\n".join([_result(message, called) for message in some])})
        else:
            turns += [_with_calls(message, called) for message in some]
    return tuple(turns) if tools is None else _introduced(turns, tools)


def _introduced(messages: Sequence[Message], tools: Tools) -> tuple[Message, ...]:
    functions = "\n".join([_dumps(tool["function"]) for tool in tools.listed])
    introduction = _INTRODUCTION.format(functions=functions)
    first = messages[0]
    if first["role"] != "system":
        return ({"role": "system", "content": introduction}, *messages)
    return ({**first, "content": f"{first['content']}\n\n{introduction}"}, *messages[1:])


def _with_calls(message: Message, called: dict[str, JSON]) -> Message:
    """Return an assistant's message with its calls as it would have written them; any other message unchanged."""
    calls, texts = message.get("tool_calls"), []
    if not isinstance(calls, list):
        return message
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(call, dict) and isinstance(function, dict):
            called[str(call.get("id"))] = function["name"]
            texts.append(f'{{"name": {_dumps(function["name"])}, "arguments": {function["arguments"] or "{}"}}}')
    before = f"{message['content']}\n" if message["content"] else ""
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": f"{before}[{', '.join(texts)}]"}


def _result(message: Message, called: Mapping[str, JSON]) -> str:
    name = called.get(str(message.get("tool_call_id")))
    return f"Result{f' of {name}' if name else ''}: {message['content']}"


def _dumps(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False)
