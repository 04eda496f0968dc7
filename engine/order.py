"""A request as the engine works on it: parsed once from the wire's types, then only read.

`read_order` takes the fields, `prepare` (in a thread: templates and long texts take their time) turns
messages and texts into tokens and settles how many may follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from engine.fields import check_fields
from engine.messages import Ready, Sampling
from engine.template import TemplateRejected
from engine.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import ChatRequest, CompletionRequest, GenerationRequest

_MOST_STOPS = 16
_LONGEST_STOP = 256
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and draws the likeliest token anyway
_ALL_TOKENS = 1 << 30  # more than any vocabulary holds: a top_k beyond it asks for nothing
_COMPLETION_TOKENS = 16  # OpenAI's default of legacy completions
_RESERVED_VARIABLES = {"messages", "add_generation_prompt", "tools", "documents"}

Fields = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asked for, apart from the prompt.

    seed: None asks for a random one. max_tokens: None leaves it to the dialect and the context.
    stops: strings that end a choice; stop_tokens: ids that do, beside the model's own unless ignore_eos.
    """

    request: ChatRequest | CompletionRequest
    sampling: Sampling
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_tokens: frozenset[int]
    ignore_eos: bool
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in tokens, how many may follow it, and the text that comes back where echo asks for it."""

    tokens: tuple[int, ...]
    max_tokens: int
    echo: str = ""


def read_order(request: ChatRequest | CompletionRequest) -> Order:
    """Read the engine's own fields; raises ApiError 400 naming the field at fault."""
    fields = request.body.fields
    check_fields(request.dialect, fields)
    if request.best_of is not None and request.best_of != request.n:
        raise invalid_request("'best_of' above 'n' is not supported by this engine.", param="best_of")
    return Order(
        request=request,
        sampling=_sampling(request, fields),
        seed=None if request.seed == -1 else request.seed,  # -1 asks for a random seed, as with llama.cpp
        max_tokens=_max_tokens(request, fields),
        stops=_stops(fields),
        stop_tokens=_stop_tokens(fields),
        ignore_eos=_flag(fields, "ignore_eos"),
        variables=_variables(fields),
    )


def prepare(order: Order, tokenizer: Tokenizer, ready: Ready) -> tuple[Prompt, ...]:
    """Turn the request's prompts into tokens; raises ApiError 400 for what the model cannot take."""
    request = order.request
    if any(token >= ready.vocab_size for token in order.stop_tokens):
        raise invalid_request("A stop token is outside the model's vocabulary.", param="stop_token_ids")
    if isinstance(request, ChatRequest):
        text = _chat_text(request.body.fields, order.variables, tokenizer)
        _refuse_endless(text, tokenizer, ready, "messages")
        return (_prompt(tokenizer.encode_chat(text), "", order, ready),)
    prompts = []
    for prompt in request.prompt:
        if isinstance(prompt, str):
            _refuse_endless(prompt, tokenizer, ready, "prompt")
            tokens = tokenizer.encode(prompt)
        else:
            tokens = tuple(prompt)
            if any(not 0 <= token < ready.vocab_size for token in tokens):
                raise invalid_request("A token is outside the model's vocabulary.", param="prompt")
        echo = ""
        if request.echo:
            echo = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
        prompts.append(_prompt(tokens, echo, order, ready, tokenizer.begin))
    return tuple(prompts)


def _prompt(tokens: tuple[int, ...], echo: str, order: Order, ready: Ready, begin: int | None = None) -> Prompt:
    """Settle the length. An empty prompt becomes the token that begins a text, as OpenAI's does."""
    param = "messages" if isinstance(order.request, ChatRequest) else "prompt"
    if not tokens and begin is not None:
        tokens = (begin,)
    if not tokens:
        raise invalid_request("The prompt holds no token.", param=param)
    room = ready.max_model_len - len(tokens)
    if room < 1 or (order.max_tokens is not None and order.max_tokens > room):
        asked = "" if order.max_tokens is None else f" and {order.max_tokens} new tokens were asked for"
        raise _too_long(f"The prompt has {len(tokens)} tokens{asked}.", ready, param)
    if order.max_tokens is not None:
        room = order.max_tokens
    elif isinstance(order.request, CompletionRequest):
        room = min(room, _COMPLETION_TOKENS)
    return Prompt(tokens, room, echo)


def _refuse_endless(text: str, tokenizer: Tokenizer, ready: Ready, param: str) -> None:
    """Spare the work on a text that cannot fit, however well its tokens match it."""
    if len(text) > ready.max_model_len * tokenizer.table.longest:
        raise _too_long(f"The prompt has {len(text)} characters.", ready, param)


def _too_long(what: str, ready: Ready, param: str) -> ApiError:
    return invalid_request(
        f"This model's maximum context length is {ready.max_model_len} tokens. {what}",
        param=param,
        code="context_length_exceeded",
    )


def _chat_text(fields: Fields, variables: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    if tokenizer.template is None:
        raise invalid_request("This model has no chat template; use /v1/completions.", param="messages")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_request("'messages' must be a non-empty list.", param="messages")
    plain = [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
    try:
        return tokenizer.template.render(plain, variables)
    except TemplateRejected as error:
        raise invalid_request(str(error), param="messages") from error


def _message(message: JSON, where: str) -> dict[str, JSON]:
    """One message with its content as one text; its other keys go to the template as they are."""
    if not isinstance(message, dict):
        raise invalid_request(f"'{where}' must be an object.", param=where)
    if not isinstance(message.get("role"), str):
        raise invalid_request(f"'{where}.role' must be a string.", param=f"{where}.role")
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
        raise invalid_request(f"'{where}' must be a string or a list of parts.", param=where)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise invalid_request(f"'{where}' may hold text parts only.", param=where, code="unsupported_parameter")
        texts.append(text)
    return "\n".join(texts)


def _sampling(request: GenerationRequest, fields: Fields) -> Sampling:
    temperature = _number(fields, "temperature", 1.0, 0.0, 2.0)
    top_p = _number(fields, "top_p", 1.0, 0.0, 1.0)
    top_k = _integer(fields, "top_k", 0, -1)
    if temperature < _GREEDY_BELOW:
        return Sampling(temperature=0.0)
    if top_p == 0:  # the smallest set of tokens is the likeliest one alone
        return Sampling(temperature=temperature, top_k=1)
    return Sampling(temperature=temperature, top_k=top_k if 0 < top_k < _ALL_TOKENS else 0, top_p=top_p)


def _max_tokens(request: GenerationRequest, fields: Fields) -> int | None:
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
    stops = [value] if isinstance(value, str) else ([] if value is None else value)
    texts = tuple(stop for stop in stops if isinstance(stop, str)) if isinstance(stops, list) else ()
    if not isinstance(stops, list) or len(texts) != len(stops):
        raise invalid_request("'stop' must be a string or a list of strings.", param="stop", code="invalid_type")
    if len(texts) > _MOST_STOPS or not all(0 < len(text) <= _LONGEST_STOP for text in texts):
        raise invalid_request(
            f"'stop' takes up to {_MOST_STOPS} strings of 1 to {_LONGEST_STOP} characters.", param="stop"
        )
    return texts


def _stop_tokens(fields: Fields) -> frozenset[int]:
    value = fields.get("stop_token_ids")
    listed = value if isinstance(value, list) else []
    tokens = [token for token in listed if _is_integer(token) and token >= 0]
    if value is not None and (not isinstance(value, list) or len(tokens) != len(listed)):
        raise invalid_request("'stop_token_ids' must be a list of token ids.", param="stop_token_ids")
    return frozenset(tokens)


def _variables(fields: Fields) -> Mapping[str, Any]:
    value = fields.get("chat_template_kwargs")
    if value is None:
        return {}
    if not isinstance(value, dict) or value.keys() & _RESERVED_VARIABLES:
        raise invalid_request(
            "'chat_template_kwargs' must be an object of the template's own variables.", param="chat_template_kwargs"
        )
    return value


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid_request(f"'{name}' must be true or false.", param=name, code="invalid_type")
    return bool(value)


def _is_integer(value: JSON) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)  # in Python, True is an int


def _integer(fields: Fields, name: str, default: int, least: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if not _is_integer(value):
        raise invalid_request(f"'{name}' must be an integer.", param=name, code="invalid_type")
    if value < least:
        raise invalid_request(
            f"'{name}' must be at least {least}, got {value}.", param=name, code="integer_below_min_value"
        )
    return value


def _number(fields: Fields, name: str, default: float, least: float, most: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid_request(f"'{name}' must be a number.", param=name, code="invalid_type")
    if not least <= value <= most:
        code = "decimal_below_min_value" if value < least else "decimal_above_max_value"
        raise invalid_request(f"'{name}' must lie between {least:g} and {most:g}, got {value}.", param=name, code=code)
    return float(value)
