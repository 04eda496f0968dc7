"""What a program may ask of the engine: the API's fields, and nothing that would be ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from engine.errors import RequestError
from nproxy.openai.body import LONG, Body
from nproxy.openai.jsonvalue import has_lone_surrogate, without_escaped_quotes

Messages = Sequence[Mapping[str, Any]]
"""A conversation as in the API: objects with `role` and `content`."""


class RequestOptions(TypedDict, total=False):
    """What may be asked for, with the API's names, meanings, bounds and defaults.

    model: the name of a LoRA adapter. logprobs: how many of the likeliest tokens are returned with each drawn one, also
    for chats. prompt_logprobs: the same for the prompt's tokens; not for streams. cache_salt: computed prompts are
    shared only with requests of the same salt.
    """

    model: str
    n: int
    best_of: int
    seed: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logprobs: int
    prompt_logprobs: int
    choice_params: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]
    cache_salt: str


class TextOptions(RequestOptions, total=False):
    """Further options of texts. echo: each choice's text begins with the prompt's."""

    echo: bool


class ChatOptions(RequestOptions, total=False):
    """Further options of chats. top_logprobs: with `logprobs=True`, the API's way to ask for `logprobs`."""

    max_completion_tokens: int
    top_logprobs: int
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    documents: Sequence[Mapping[str, Any]]
    reasoning_effort: str
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]


class StreamingOptions(TextOptions, ChatOptions, total=False):
    """The options of a stream: for a text those of texts, for a conversation those of chats."""


def check_options(options: Mapping[str, Any], *, chat: bool) -> None:
    """Raise RequestError with the names that are no options of a chat, or of a text."""
    unknown = [name for name in options if name not in (ChatOptions if chat else TextOptions).__optional_keys__]
    if unknown:
        names = ", ".join([f"'{name}'" for name in unknown])
        raise RequestError(f"a {'chat' if chat else 'text'} takes no {names}", unknown[0])


def body_of(fields: Mapping[str, Any]) -> Body:
    """Return fields as the API's request; raise RequestError naming a field that JSON cannot hold: a NaN, or half of a
    surrogate pair in a text.
    """
    return Body.parse("{{{}}}".format(",".join([_member(name, value) for name, value in fields.items()])).encode())


def _member(name: str, value: object) -> str:
    try:
        written = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"'{name}' is invalid: {error}", name) from None
    if has_lone_surrogate(without_escaped_quotes(written.encode()), LONG):
        raise RequestError(f"'{name}' contains half of a surrogate pair", name)
    return f'"{name}":{written}'
