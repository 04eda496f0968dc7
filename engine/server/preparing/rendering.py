"""Turns a chat into the text of its prompt, with the model's own template."""

from __future__ import annotations

import json
from typing import Any

from engine.server.asking.chat import Chat, Message
from engine.server.preparing.roles import suit_roles
from engine.server.preparing.tools_in_words import in_words
from engine.text.template import ChatTemplate, TemplateRejected
from engine.text.tokenizer import Tokenizer
from nproxy.openai.body import LONG
from nproxy.openai.errors import ApiError, invalid_request, shorten
from nproxy.openai.jsonvalue import JSON, has_lone_surrogate, without_escaped_quotes

_HERE = "\ue000continues here\ue001"
"""Marks the end of the text that is to be continued: what the template writes after it may be like the text itself."""


def render(chat: Chat, tokenizer: Tokenizer) -> str:
    """Write the prompt with the model's template; raise ApiError 400 if that is not possible.

    If the template does not support tools, they, and all earlier calls and their results, are described in words.
    """
    template = tokenizer.template_for(tools=chat.tools is not None)
    if template is None:
        raise invalid_request("This model has no chat template; use /v1/completions.", param="messages")
    messages, variables = suit_roles(chat.messages, template.source), _variables(chat, template)
    if "tools" not in template.variables:
        messages = in_words(messages, chat.tools)
    else:
        variables["tools"] = None if chat.tools is None else list(chat.tools.listed)
        messages = tuple([_suited(message, template, f"messages.{i}") for i, message in enumerate(messages)])
    last = str(messages[-1]["content"])
    if chat.continued:
        messages = (*messages[:-1], {**messages[-1], "content": last + _HERE})
    try:
        text = template.render(messages, variables, generation=chat.generation)
    except TemplateRejected as error:
        raise invalid_request(str(error), param="messages") from error
    return _left_open(text, last) if chat.continued else text


def _variables(chat: Chat, template: ChatTemplate) -> dict[str, Any]:
    """Return the template's switches; raise ApiError 400 for fields of the request that it would ignore.

    `chat_template_kwargs` are not checked, because clients send switches to every model.
    """
    variables: dict[str, Any] = dict(chat.variables)
    if chat.documents:
        if "documents" not in template.variables:
            raise _unknown("documents")
        variables["documents"] = list(chat.documents)
    if chat.reasoning_effort is not None:
        if "reasoning_effort" in template.variables:
            variables.setdefault("reasoning_effort", chat.reasoning_effort)
        elif "enable_thinking" in template.variables:
            variables.setdefault("enable_thinking", chat.reasoning_effort != "none")
        elif chat.reasoning_effort != "none":
            raise _unknown("reasoning_effort")
    return variables


def _unknown(field: str) -> ApiError:
    message = f"'{field}' is not supported by this model's chat template."
    return invalid_request(message, param=field, code="unsupported_parameter")


def _suited(message: Message, template: ChatTemplate, where: str) -> Message:
    """Return the message with its calls in the form that this template takes."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    if message["content"] is None and not template.takes_null:
        message = {**message, "content": ""}
    if template.joins_arguments:
        return message
    return {**message, "tool_calls": [_with_object(call, f"{where}.tool_calls.{i}") for i, call in enumerate(calls)]}


def _with_object(call: Any, where: str) -> JSON:
    function = call["function"]
    text = function["arguments"] or "{}"
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if has_lone_surrogate(without_escaped_quotes(text.encode()), LONG):
        arguments = None  # no tokenizer takes it
    if not isinstance(arguments, dict):
        param = f"{where}.function.arguments"
        raise invalid_request(
            f"'{param}' must be a string that contains a JSON object; the arguments of '{shorten(function['name'])}'"
            " do not. A call that was cut cannot be continued.",
            param=param,
            code="invalid_value",
        )
    return {**call, "function": {**function, "arguments": arguments}}


def _left_open(text: str, last: str) -> str:
    """Return the prompt up to the end of its last message's text, whose leading space the template may have
    stripped.
    """
    before, found, _ = text.rpartition(_HERE)
    if found and before.endswith((last, last.lstrip())):
        return before
    raise invalid_request("The model's chat template changes the message that is to be continued.", param="messages")
