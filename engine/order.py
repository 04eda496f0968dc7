"""A request as the engine works on it: its own fields parsed once, then only read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard, cast

from engine.fields import check_fields
from engine.messages import Sampling
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import below, wrong_type
from nproxy.openai.requests import ChatRequest, CompletionRequest

_MOST_STOPS = 16
_LONGEST_STOP = 256
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and draws the likeliest token anyway
_ALL_TOKENS = 1 << 30  # more than any vocabulary holds: a top_k beyond it asks for nothing
_RESERVED_VARIABLES = {"messages", "add_generation_prompt", "tools", "documents"}

Fields = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asked for, apart from the prompt.

    seed: None asks for a random one. max_tokens: None leaves it to the dialect and the context.
    stops: strings that end a choice; stop_tokens: ids that do, beside the model's own unless ignore_eos.
    messages: of a chat, each with its content as one text. variables: the chat template's own switches.
    """

    request: ChatRequest | CompletionRequest
    sampling: Sampling
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
    ignore_eos: bool
    messages: tuple[Mapping[str, JSON], ...]
    variables: Mapping[str, JSON]


def read_order(request: ChatRequest | CompletionRequest) -> Order:
    """Read the engine's own fields; raises ApiError 400 naming the field at fault."""
    fields = request.body.fields
    check_fields(request.dialect, fields)
    if request.best_of is not None and request.best_of != request.n:
        raise invalid_request("'best_of' above 'n' is not supported by this engine.", param="best_of")
    return Order(
        request=request,
        sampling=_sampling(fields),
        seed=None if request.seed == -1 else request.seed,  # -1 asks for a random seed, as with llama.cpp
        max_tokens=_max_tokens(fields),
        stops=_stops(fields),
        stop_tokens=_stop_tokens(fields),
        ignore_eos=_flag(fields, "ignore_eos"),
        messages=_messages(fields) if isinstance(request, ChatRequest) else (),
        variables=_variables(fields),
    )


def _messages(fields: Fields) -> tuple[Mapping[str, JSON], ...]:
    listed = cast(list[dict[str, JSON]], fields["messages"])  # a list of objects: the wire's parser has seen to it
    return tuple(_message(message, f"messages.{number}") for number, message in enumerate(listed))


def _message(message: Mapping[str, JSON], where: str) -> Mapping[str, JSON]:
    """One message with its content as one text; its other keys go to the template as they are."""
    if not isinstance(message.get("role"), str):
        raise wrong_type(f"{where}.role", "a string", message.get("role"))
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise invalid_request(
                f"'{where}.{name}' is not supported by this engine.",
                param=f"{where}.{name}",
                code="unsupported_parameter",
            )
    return {**message, "content": _content(message.get("content"), f"{where}.content")}


def _content(content: JSON, where: str) -> str:
    """A message's text; text parts are joined by line breaks, and no content is an empty text, as in vLLM."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "a string or an array of parts", content)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise invalid_request(f"'{where}' may hold text parts only.", param=where, code="unsupported_parameter")
        texts.append(text)
    return "\n".join(texts)


def _sampling(fields: Fields) -> Sampling:
    temperature = _number(fields, "temperature", 1.0, 0.0, 2.0)
    top_p = _number(fields, "top_p", 1.0, 0.0, 1.0)
    top_k = _integer(fields, "top_k", 0, -1)
    if temperature < _GREEDY_BELOW:
        return Sampling(temperature=0.0)
    if top_p == 0:  # the smallest set of tokens is the likeliest one alone
        return Sampling(temperature=temperature, top_k=1)
    return Sampling(temperature=temperature, top_k=top_k if 0 < top_k < _ALL_TOKENS else 0, top_p=top_p)


def _max_tokens(fields: Fields) -> int | None:
    """`max_tokens` and its newer name; OpenAI refuses both together, here they only must not differ."""
    found = {}
    for name in ("max_tokens", "max_completion_tokens"):
        if fields.get(name) is not None:
            found[name] = _integer(fields, name, 1, 1)
    if len(set(found.values())) > 1:
        raise invalid_request("'max_tokens' and 'max_completion_tokens' differ.", param="max_tokens")
    return next(iter(found.values()), None)


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if isinstance(value, str):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    texts = []
    for number, stop in enumerate(value):
        if not isinstance(stop, str):
            raise wrong_type(f"stop.{number}", "a string", stop)
        if not 0 < len(stop) <= _LONGEST_STOP:
            raise invalid_request(f"A stop string has 1 to {_LONGEST_STOP} characters.", param="stop")
        texts.append(stop)
    if len(texts) > _MOST_STOPS:
        raise invalid_request(f"'stop' takes up to {_MOST_STOPS} strings.", param="stop")
    return tuple(texts)


def _stop_tokens(fields: Fields) -> frozenset[int]:
    value = fields.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list):
        raise wrong_type("stop_token_ids", "an array of token ids", value)
    tokens = set()
    for number, token in enumerate(value):
        if not _is_integer(token):
            raise wrong_type(f"stop_token_ids.{number}", "a token id", token)
        if token < 0:
            raise below(f"stop_token_ids.{number}", token, 0)
        tokens.add(token)
    return frozenset(tokens)


def _variables(fields: Fields) -> Mapping[str, JSON]:
    value = fields.get("chat_template_kwargs")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object", value)
    if reserved := value.keys() & _RESERVED_VARIABLES:
        raise invalid_request(f"'{min(reserved)}' is not a template's own variable.", param="chat_template_kwargs")
    return value


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(name, "a boolean", value)
    return bool(value)


def _is_integer(value: JSON) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)  # in Python, True is an int


def _integer(fields: Fields, name: str, default: int, least: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not _is_integer(value):
        raise wrong_type(name, "an integer", value)
    if value < least:
        raise below(name, value, least)
    return value


def _number(fields: Fields, name: str, default: float, least: float, most: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, "a number", value)
    if not least <= value <= most:
        code = "decimal_below_min_value" if value < least else "decimal_above_max_value"
        message = f"Invalid '{name}': expected a value between {least:g} and {most:g}, but got {value:g}."
        raise invalid_request(message, param=name, code=code)
    return float(value)
