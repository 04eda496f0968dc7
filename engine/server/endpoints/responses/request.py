"""A request to /v1/responses: the fields of the chat that it becomes, and what its answer repeats of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.server.asking.harmless import HARMLESS, check_harmless
from engine.server.asking.members import Members
from engine.server.asking.sampling import FIELDS as SAMPLING
from engine.server.endpoints.responses.items import Item, NewId, check_ids, messages_of, read_items
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import missing, wrong_type
from nproxy.openai.typed import unknown

# Fields that a chat takes under the same name, including vLLM's extensions.
_AS_IN_CHAT = SAMPLING | {
    "cache_salt",
    "chat_template_kwargs",
    "ignore_eos",
    "model",
    "parallel_tool_calls",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
}
_READ = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "previous_response_id",
        "reasoning",
        "store",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
    }
)
_NOT_HERE = frozenset({"guided_decoding_backend", "request_id"})  # extensions of chats alone
# They change nothing about the answer; max_tool_calls counts calls of tools that run at OpenAI.
_HARMLESS = (HARMLESS - _NOT_HERE) | {"max_tool_calls"}
_NEUTRAL: Mapping[str, Sequence[JSON]] = {"background": (False,), "truncation": ("disabled", "auto")}
"""Nothing is cut off here: an input that is too long is refused with either value of `truncation`."""
_UNSUPPORTED = frozenset({"context_management", "conversation", "moderation", "prompt"})

_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")  # the latter comes unencrypted


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked for."""

    fields: Mapping[str, JSON]
    """As they were sent."""
    items: tuple[Item, ...]
    """The input."""
    instructions: str | None
    previous: str | None
    stream: bool
    store: bool
    logprobs: int | None
    """None if none are asked for."""

    def chat(self, before: Sequence[Item]) -> dict[str, Any]:
        """Return the fields of the chat that this request becomes, after earlier items; raise ApiError 400 for what is
        invalid.
        """
        fields, members = self.fields, Members(self.fields)
        asked: dict[str, Any] = {name: fields[name] for name in _AS_IN_CHAT & fields.keys()}
        check_ids(before, self.items)
        asked["messages"] = messages_of([*before, *self.items], self.instructions)
        asked["max_completion_tokens"] = members.integer("max_output_tokens", 1)
        asked["response_format"] = _format(members.object("text"))
        asked["reasoning_effort"] = members.object("reasoning").get("effort")
        asked["tools"], asked["tool_choice"] = _tools(fields.get("tools")), _choice(fields.get("tool_choice"))
        if self.logprobs is not None:
            asked |= {"logprobs": True, "top_logprobs": self.logprobs}
        return {name: value for name, value in asked.items() if value is not None}

    def repeated(self) -> dict[str, JSON]:
        """Return what the response repeats of its request, with the defaults of fields that were left out."""
        given = {name: value for name, value in self.fields.items() if value is not None}
        reasoning, text = Members(given).object("reasoning"), Members(given).object("text")
        return {
            "instructions": self.instructions,
            "max_output_tokens": given.get("max_output_tokens"),
            "max_tool_calls": given.get("max_tool_calls"),
            "metadata": given.get("metadata", {}),
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "previous_response_id": self.previous,
            "prompt_cache_key": given.get("prompt_cache_key"),
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "safety_identifier": given.get("safety_identifier"),
            "service_tier": "default",
            "store": self.store,
            "temperature": given.get("temperature", 1.0),
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_logprobs": self.logprobs or 0,
            "top_p": given.get("top_p", 1.0),
            "truncation": given.get("truncation", "disabled"),
            "user": given.get("user"),
            "background": False,
        }


def read_asked(fields: Mapping[str, JSON], new_id: NewId) -> Asked:
    """Read a request; raise ApiError 400 naming the field at fault. There is no `n` in this API."""
    for name, value in fields.items():
        if value is not None and name not in _READ and name not in _AS_IN_CHAT and name not in _HARMLESS:
            _check_neutral(name, value)
    members = Members(fields)
    if fields.get("model") is None:
        raise missing("model")
    check_harmless(members)
    members.integer("max_tool_calls", 1)
    _check_texts(members.object("text"), members.object("reasoning"))
    for name in members.object("stream_options").keys() - {"include_obfuscation"}:
        raise unknown(f"stream_options.{name}", {"include_obfuscation"})
    included = _included(fields.get("include"))
    top = members.integer("top_logprobs", 0)
    return Asked(
        fields=fields,
        items=tuple(read_items(fields.get("input"), new_id)),
        instructions=_text(members, "instructions"),
        previous=_text(members, "previous_response_id"),
        stream=members.flag("stream"),
        store=fields.get("store") is None or members.flag("store"),
        logprobs=top or 0 if _LOGPROBS in included or top else None,
    )


_RENAMED = (  # a chat's fields, and what the client has sent in their place
    (re.compile(r"max_(completion_)?tokens"), "max_output_tokens"),
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
    (re.compile(r"messages(\.\d+.*)?"), "input"),
    (re.compile(r"(tools\.\d+|tool_choice)\.function"), r"\1"),
)


def renamed(error: ApiError) -> ApiError:
    """Return an error about a chat as one about the request that became it."""
    if error.param is None:
        return error
    param = renamed_field(error.param)
    message = error.message.replace(f"'{error.param}'", f"'{param}'")
    return ApiError(error.status, message, type=error.type, param=param, code=error.code, headers=error.headers)


def renamed_field(name: str) -> str:
    """Return a chat's field as the one that the client has sent in its place."""
    for pattern, there in _RENAMED:
        if found := pattern.match(name):
            return found.expand(there) + name[found.end() :]
    return name


def _check_neutral(name: str, value: JSON) -> None:
    if name not in _NEUTRAL and name not in _UNSUPPORTED:
        of_a_chat = (there for pattern, there in _RENAMED if pattern.fullmatch(name))
        raise unknown(name, _READ | _AS_IN_CHAT, meant=next(of_a_chat, None))
    if name in _UNSUPPORTED or not any(
        value == one and type(value) is type(one)  # 0 == False
        for one in _NEUTRAL[name]
    ):
        raise _unsupported(name)


def _unsupported(param: str) -> ApiError:
    return invalid_request(f"'{param}' is not supported by this engine.", param=param, code="unsupported_parameter")


def _text(members: Members, name: str) -> str | None:
    value = members.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_type(members.called(name), "a string", value)
    return value


def _check_texts(text: Mapping[str, JSON], reasoning: Mapping[str, JSON]) -> None:
    """Check the members of `text` and `reasoning` besides the format and the effort."""
    neutral: Mapping[str, tuple[JSON, ...]] = {
        "text.format": (text.get("format"),),
        "text.verbosity": (None, "medium"),
        "reasoning.effort": (reasoning.get("effort"),),
        "reasoning.summary": (None, "auto"),  # accepted, because reasoning comes in full
        "reasoning.generate_summary": (None, "auto"),
    }
    given = {f"text.{name}": value for name, value in text.items()}
    given |= {f"reasoning.{name}": value for name, value in reasoning.items()}
    for name, value in given.items():
        if name not in neutral:
            raise unknown(name)
        if value not in neutral[name]:
            raise _unsupported(name)


def _included(value: JSON) -> Sequence[JSON]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("include", "an array of strings", value)
    for number, name in enumerate(value):
        if name not in _INCLUDED:
            raise _unsupported(f"include.{number}")
    return value


def _format(text: Mapping[str, JSON]) -> JSON:
    """Return `text.format` as `response_format`, in which the schema and its name are one level deeper."""
    form = text.get("format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _tools(value: JSON) -> JSON:
    """Return functions as in a chat, one level deeper; a tool of another kind runs at OpenAI, not here."""
    if not isinstance(value, list):
        return value
    return [_deeper(tool) for tool in value]


def _choice(value: JSON) -> JSON:
    if not isinstance(value, dict) or value.get("type") != "allowed_tools":
        return _deeper(value)
    allowed = {name: member for name, member in value.items() if name != "type"}
    return {"type": "allowed_tools", "allowed_tools": {**allowed, "tools": _tools(value.get("tools"))}}


def _deeper(tool: JSON) -> JSON:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
