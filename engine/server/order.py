"""A request as the engine works on it: its own fields parsed once, then only read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from engine.server.fields import check_fields
from engine.server.members import Members
from engine.server.sampling import read_tokens
from engine.server.telling import MOST_LOGPROBS, Telling, read_telling
from engine.server.wishes import Wish, read_wishes
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type
from nproxy.openai.requests import ChatRequest, CompletionRequest

_RESERVED_VARIABLES = {"messages", "add_generation_prompt", "tools", "documents"}

Fields = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asked for, apart from the prompt.

    seed: of choice 0 of each prompt, counted up from there; None asks for a random one. wishes: what each of a
    prompt's n choices is to be. stop_tokens: ids that end a choice, beside the model's own unless ignore_eos.
    messages: of a chat, each with its content as one text. variables: the chat template's own switches.
    telling: what is told of tokens beside their text.
    """

    request: ChatRequest | CompletionRequest
    wishes: tuple[Wish, ...]
    seed: int | None
    stop_tokens: frozenset[int]
    ignore_eos: bool
    messages: tuple[Mapping[str, JSON], ...]
    variables: Mapping[str, JSON]
    telling: Telling

    @property
    def echoes(self) -> bool:
        """Whether the prompt's text comes back with each choice."""
        return isinstance(self.request, CompletionRequest) and self.request.echo

    @property
    def drawn_logprobs(self) -> int | None:
        """As in Add; best_of chooses by them, told or not."""
        chosen = 0 if self.request.drawn > self.request.n else None
        return chosen if self.telling.logprobs is None else self.telling.logprobs

    @property
    def prompt_logprobs(self) -> int | None:
        """As in Add: what is told of the prompt, by itself or with an echo."""
        told = [self.telling.prompt_logprobs, self.telling.logprobs if self.echoes else None]
        return max([one for one in told if one is not None], default=None)


def read_order(request: ChatRequest | CompletionRequest, most_logprobs: int = MOST_LOGPROBS) -> Order:
    """Read the engine's own fields; raises ApiError 400 naming the field at fault.

    most_logprobs: how many of the likeliest tokens may be asked for.
    """
    fields = request.body.fields
    check_fields(request.dialect, fields)
    return Order(
        request=request,
        wishes=read_wishes(request),
        seed=None if request.seed == -1 else request.seed,  # -1 asks for a random seed, as with llama.cpp
        stop_tokens=frozenset(read_tokens(Members(fields), "stop_token_ids") or ()),
        ignore_eos=Members(fields).flag("ignore_eos"),
        messages=_messages(fields) if isinstance(request, ChatRequest) else (),
        variables=_variables(fields),
        telling=read_telling(request, most_logprobs),
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


def _variables(fields: Fields) -> Mapping[str, JSON]:
    value = fields.get("chat_template_kwargs")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object", value)
    if reserved := value.keys() & _RESERVED_VARIABLES:
        raise invalid_request(f"'{min(reserved)}' is not a template's own variable.", param="chat_template_kwargs")
    return value
