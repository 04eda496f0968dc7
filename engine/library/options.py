"""What a program may ask of the engine: the API's fields, and nothing that would be ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from engine.config import Device, Dtype, EngineConfig, Kernels, Pooling, Quantization
from engine.errors import ConfigError, RequestError
from nproxy.openai.body import LONG, Body
from nproxy.openai.jsonvalue import has_lone_surrogate, without_escaped_quotes

Messages = Sequence[Mapping[str, Any]]
"""A conversation as in the API: objects with `role` and `content`."""


class EngineOptions(TypedDict, total=False):
    """The fields of EngineConfig, with its meanings and defaults.

    adapters: also a mapping of names to folders, as in the settings file.
    """

    dtype: Dtype
    quantization: Quantization | None
    device: Device
    kernels: Kernels
    cuda_graphs: bool
    deterministic: bool
    served_model_name: str | None
    block_size: int
    num_blocks: int | None
    kv_fraction: float | None
    max_model_len: int | None
    max_batch_tokens: int | None
    max_sequences: int
    max_queue: int
    prefix_cache: bool
    max_logprobs: int
    tool_parser: str
    reasoning_parser: str
    adapters: Mapping[str, str | Path] | Sequence[tuple[str, str | Path]]
    max_responses: int
    max_response_bytes: int
    pooling: Pooling | None
    share_gate: int | None
    seed: int | None


class RequestOptions(TypedDict, total=False):
    """What may be asked for, with the API's names, meanings, bounds and defaults; None asks for nothing.

    model: the name of a LoRA adapter. logprobs: how many of the likeliest tokens are returned with each drawn one, also
    for chats. prompt_logprobs: the same for the prompt's tokens; not for streams. cache_salt: computed prompts are
    shared only with requests of the same salt.
    """

    model: str | None
    n: int | None
    best_of: int | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | None
    bad_words: Sequence[str] | None
    allowed_token_ids: Sequence[int] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop_str_in_output: bool | None
    skip_special_tokens: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    choice_params: Sequence[Mapping[str, Any]] | None
    response_format: Mapping[str, Any] | None
    structured_outputs: Mapping[str, Any] | None
    cache_salt: str | None


class TextOptions(RequestOptions, total=False):
    """Further options of texts. echo: each choice's text begins with the prompt's."""

    echo: bool | None


class ChatOptions(RequestOptions, total=False):
    """Further options of chats. top_logprobs: with `logprobs=True`, the API's way to ask for `logprobs`."""

    max_completion_tokens: int | None
    top_logprobs: int | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    documents: Sequence[Mapping[str, Any]] | None
    reasoning_effort: str | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, Any] | None


class StreamingOptions(TextOptions, ChatOptions, total=False):
    """The options of a stream: for a text those of texts, for a conversation those of chats."""


def config_of(model: str | Path, options: Mapping[str, Any]) -> EngineConfig:
    """Return a model's settings; raise ConfigError for options that do not exist or cannot work."""
    unknown = [name for name in options if name not in EngineOptions.__optional_keys__]
    if unknown:
        raise ConfigError(f"the engine has no option '{unknown[0]}'")
    adapters = options.get("adapters", ())
    pairs = tuple(adapters.items()) if isinstance(adapters, Mapping) else adapters
    return EngineConfig(str(model), **{**options, "adapters": pairs})


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
        written = json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: of torch, and RecursionError
        raise RequestError(f"'{name}' is invalid: {error}", name) from None
    if has_lone_surrogate(without_escaped_quotes(written.encode()), LONG):
        raise RequestError(f"'{name}' contains half of a surrogate pair", name)
    return f'"{name}":{written}'


def _plain(value: object) -> object:
    """Return a mapping, a sequence, or an array or number of numpy or torch, as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, bytes | bytearray | memoryview):
        if hasattr(value, "tolist"):
            return value.tolist()
        if isinstance(value, Sequence):
            return list(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")
