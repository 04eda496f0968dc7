"""Which fields of a request the engine knows, and what becomes of the others.

A field is honoured or refused, never silently ignored. Three tables say so: fields that are read, fields
that change nothing about the answer, and fields that pass only with a value that asks for nothing. Null
asks for nothing in any field.
"""

from __future__ import annotations

from collections.abc import Mapping

from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON

_READ = frozenset(
    {
        "best_of",
        "choice_params",
        "include_stop_str_in_output",
        "logprobs",
        "model",
        "n",
        "n_cmpl",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "skip_special_tokens",
        "stream",
        "stream_options",
        "top_logprobs",
    }
)
_READ_BY = {
    Dialect.CHAT: _READ | {"messages", "max_completion_tokens", "chat_template_kwargs"},
    Dialect.COMPLETIONS: _READ | {"prompt", "echo"},
}

_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

_NEUTRAL: Mapping[str, tuple[JSON, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
_NEUTRAL_BY = {
    Dialect.CHAT: {**_NEUTRAL, "add_special_tokens": (False,), "echo": (False,)},
    Dialect.COMPLETIONS: {**_NEUTRAL, "add_special_tokens": (True,)},
}

_PER_CHOICE = frozenset({"temperature", "top_p", "top_k", "seed", "max_tokens", "stop"})
_PER_CHOICE_BY = {Dialect.CHAT: _PER_CHOICE | {"max_completion_tokens"}, Dialect.COMPLETIONS: _PER_CHOICE}
_NEUTRAL_PER_CHOICE: Mapping[str, tuple[JSON, ...]] = {
    name: _NEUTRAL[name]
    for name in ("frequency_penalty", "logit_bias", "min_p", "presence_penalty", "repetition_penalty")
}

_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})


def check_fields(dialect: Dialect, fields: Mapping[str, JSON]) -> None:
    """Refuse, with ApiError 400 naming it, the first field whose value the engine would have to ignore."""
    for name, value in fields.items():
        if value is not None and name not in _READ_BY[dialect] and name not in _HARMLESS:
            _check_neutral(name, value, _NEUTRAL_BY[dialect].get(name))
    options = fields.get("stream_options")
    if isinstance(options, dict):
        for name in options.keys() - _STREAM_OPTIONS:
            raise invalid_request(
                f"Unrecognized stream option: '{shorten(name)}'.", param="stream_options", code="unknown_parameter"
            )


def per_choice(dialect: Dialect, own: Mapping[str, JSON], where: str) -> dict[str, JSON]:
    """What an entry of `choice_params` sets; `where` stands before its fields' names in refusals.

    Raises ApiError 400 for a field that the engine would have to ignore.
    """
    given = {name: value for name, value in own.items() if name in _PER_CHOICE_BY[dialect]}
    for name, value in own.items():
        if name not in given:
            _check_neutral(where + name, value, _NEUTRAL_PER_CHOICE.get(name))
    return given


def _check_neutral(param: str, value: JSON, neutral: tuple[JSON, ...] | None) -> None:
    param = shorten(param)
    if neutral is None:
        raise invalid_request(f"Unrecognized request argument: '{param}'.", param=param, code="unknown_parameter")
    if not any(_same(value, harmless) for harmless in neutral):
        raise invalid_request(f"'{param}' is not supported by this engine.", param=param, code="unsupported_parameter")


def _same(value: JSON, harmless: JSON) -> bool:
    """Equal, and neither of them a truth value where the other is a number (in Python, True == 1)."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)
