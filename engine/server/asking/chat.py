"""A chat in the form that its template takes: messages, tools, documents and the template's own switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from engine.server.asking.members import Members
from engine.server.asking.tools import Tools, read_tools
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import missing, wrong_type

_RESERVED_VARIABLES = {
    *("messages", "add_generation_prompt", "continue_final_message", "tools", "documents"),  # fields of their own
    *("raise_exception", "strftime_now"),  # what every template may call
    *("self", "range", "dict", "lipsum", "cycler", "joiner", "namespace"),  # Jinja's own
}
_SPEAKING = frozenset({"system", "developer", "user", "tool"})  # roles whose messages must have content
_REASONING = ("reasoning_content", "reasoning", "thinking")  # names of an earlier answer's reasoning
_OLD_MEMBERS = {"function_call": "tool_calls", "audio": None}

FIELDS = frozenset(
    {
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "function_call",
        "functions",
        "messages",
        "parallel_tool_calls",
        "reasoning_effort",
        "tool_choice",
        "tools",
    }
)
"""The fields of a request that are read here."""

Message = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Chat:
    """What a chat asks for."""

    messages: tuple[Message, ...]
    """Each with its content as one text, or None if it has calls instead."""
    tools: Tools | None
    """None if nothing may be called."""
    documents: tuple[JSON, ...]
    variables: Mapping[str, JSON]
    reasoning_effort: str | None
    generation: bool
    """Whether the prompt ends where an answer begins."""
    continued: bool
    """Whether the prompt ends with the last message, left open."""


def read_chat(fields: Mapping[str, JSON]) -> Chat:
    """Read a chat request's own fields; raise ApiError 400 naming the field at fault."""
    members = Members(fields)
    listed = cast(list[dict[str, JSON]], fields["messages"])  # a list of objects, which parse_chat has checked
    messages = tuple([_message(message, f"messages.{number}") for number, message in enumerate(listed)])
    continued = members.flag("continue_final_message")
    generation = (
        not continued if members.get("add_generation_prompt") is None else members.flag("add_generation_prompt")
    )
    if continued and (generation or not _open(messages[-1])):
        what = (
            "cannot be used together with 'add_generation_prompt'"
            if generation
            else "needs a last message that is the assistant's and contains text"
        )
        raise invalid_request(f"'continue_final_message' {what}.", param="continue_final_message")
    effort = fields.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise wrong_type("reasoning_effort", "a string", effort)
    return Chat(
        messages=messages,
        tools=read_tools(fields),
        documents=_documents(fields.get("documents")),
        variables=_variables(members.object("chat_template_kwargs")),
        reasoning_effort=effort,
        generation=generation,
        continued=continued,
    )


def _open(message: Message) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and not message.get("tool_calls")


def _message(message: Message, where: str) -> Message:
    """Return one message for the template, which gets all other keys, too."""
    role, content = message.get("role"), message.get("content")
    if role is None:
        raise missing(f"{where}.role")
    if not isinstance(role, str):
        raise wrong_type(f"{where}.role", "a string", role)
    for name, instead in _OLD_MEMBERS.items():
        if message.get(name):
            hint = f"; use '{instead}'" if instead else ""
            raise invalid_request(
                f"'{where}.{name}' is not supported by this engine{hint}.",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )
    if content is None and role in _SPEAKING:
        raise missing(f"{where}.content")
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    if (reasoning := next((message[name] for name in _REASONING if message.get(name) is not None), None)) is not None:
        others = {"thinking": reasoning, **others, "reasoning_content": reasoning}  # templates know the first or last
    if message.get("tool_calls") is None or message["tool_calls"] == []:
        return {**others, "content": _content(content, f"{where}.content")}
    calls = _calls(message["tool_calls"], f"{where}.tool_calls")
    return {
        **others,
        "content": None if content is None else _content(content, f"{where}.content"),
        "tool_calls": calls,
    }


def _content(content: JSON, where: str) -> str:
    """Return a message's text; no content is an empty text, as in vLLM."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "a string or an array of parts", content)
    texts = []
    for number, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "text" | "refusal" as name, **members}:
                raise wrong_text(cast(JSON, members.get(name)), f"{where}.{number}.{name}")
            case _:
                message = f"'{where}' may contain only text parts."
                raise invalid_request(message, param=where, code="unsupported_parameter")
    return joined(texts)


def wrong_text(value: JSON, where: str) -> ApiError:
    """Return the error for a value that must be a text, and is none."""
    return missing(where) if value is None else wrong_type(where, "a string", value)


def joined(parts: Iterable[str]) -> str:
    """Return the texts of a message's parts as one, as vLLM joins them."""
    return "\n".join(parts)


def _calls(value: JSON, where: str) -> list[JSON]:
    """Return an assistant's earlier calls. Their arguments stay the text that the model wrote."""
    if not isinstance(value, list):
        raise wrong_type(where, "an array of objects", value)
    for number, call in enumerate(value):
        at = f"{where}.{number}"
        if not isinstance(call, dict):
            raise wrong_type(at, "an object", call)
        function = call.get("function")
        if not isinstance(function, dict):
            raise missing(f"{at}.function") if function is None else wrong_type(f"{at}.function", "an object", function)
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise wrong_type(f"{at}.function.{name}", "a string", function.get(name))
    return value


def _documents(value: JSON) -> tuple[JSON, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("documents", "an array of objects", value)
    for number, document in enumerate(value):
        if not isinstance(document, dict):
            raise wrong_type(f"documents.{number}", "an object", document)
    return tuple(value)


def _variables(value: Mapping[str, JSON]) -> Mapping[str, JSON]:
    if reserved := value.keys() & _RESERVED_VARIABLES:
        raise invalid_request(f"'{min(reserved)}' is a reserved name in templates.", param="chat_template_kwargs")
    return value
