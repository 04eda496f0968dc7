"""Which fields of a request the engine knows, and how it handles the others.

A field is honoured or refused, never silently ignored. Three tables define this: fields that are read, fields that do
not change the answer, and fields that are accepted only with a value that asks for nothing. Null asks for nothing in
any field.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.server.asking import chat, structure
from engine.server.asking.harmless import HARMLESS, check_harmless
from engine.server.asking.members import Members
from engine.server.asking.sampling import FIELDS
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.typed import unknown

_READ = FIELDS | frozenset(
    {
        "best_of",
        "cache_salt",
        "choice_params",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprobs",
        "max_tokens",
        "model",
        "n",
        "n_cmpl",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "top_logprobs",
        *structure.FIELDS,
    }
)
_READ_BY = {
    Dialect.CHAT: _READ | chat.FIELDS | {"max_completion_tokens"},
    Dialect.COMPLETIONS: _READ | {"prompt", "echo"},
}

_NEUTRAL: Mapping[str, tuple[JSON, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "cache_prompt": (True,),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "moderation": (),
    "no_stop_trim": (False,),
    "prediction": (),
    "priority": (0,),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "spaces_between_special_tokens": (True, False),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_NEUTRAL_BY = {
    Dialect.CHAT: {**_NEUTRAL, "add_special_tokens": (False,), "echo": (False,)},
    Dialect.COMPLETIONS: {**_NEUTRAL, "add_special_tokens": (True,)},
}

_PER_CHOICE = FIELDS | {"seed", "max_tokens", "stop"}
_PER_CHOICE_BY = {Dialect.CHAT: _PER_CHOICE | {"max_completion_tokens"}, Dialect.COMPLETIONS: _PER_CHOICE}

_STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})


def check_fields(dialect: Dialect, fields: Mapping[str, JSON]) -> None:
    """Refuse, with ApiError 400 naming it, the first field whose value the engine would have to ignore."""
    for name, value in fields.items():
        if value is not None and name not in _READ_BY[dialect] and name not in HARMLESS:
            _check_neutral(name, value, dialect)
    check_harmless(Members(fields))
    options = fields.get("stream_options")
    if isinstance(options, dict):
        for name in options.keys() - _STREAM_OPTIONS:
            raise invalid_request(
                f"Unrecognized stream option: '{shorten(name)}'.", param="stream_options", code="unknown_parameter"
            )


def check_choice(dialect: Dialect, own: Mapping[str, JSON], where: str) -> None:
    """Refuse, with ApiError 400, what an entry of `choice_params` cannot set; `where` is the prefix of the name."""
    for name in own:
        if name not in _PER_CHOICE_BY[dialect]:
            raise unknown(where + name, _PER_CHOICE_BY[dialect])


def _check_neutral(param: str, value: JSON, dialect: Dialect) -> None:
    param, neutral = shorten(param), _NEUTRAL_BY[dialect].get(param)
    if neutral is None:
        raise unknown(param, _READ_BY[dialect])
    if not any(_same(value, harmless) for harmless in neutral):
        raise invalid_request(f"'{param}' is not supported by this engine.", param=param, code="unsupported_parameter")


def _same(value: JSON, harmless: JSON) -> bool:
    """Whether both are equal, and not one a boolean and the other a number (in Python, True == 1)."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)
