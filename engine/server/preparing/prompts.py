"""Turns messages and texts into tokens, and determines how many tokens may follow.

Rendering a template and encoding a long text take time: `prepare` runs in a thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.messages import Ready, Sampling
from engine.server.asking.chat import Chat
from engine.server.asking.choice_options import samplings
from engine.server.asking.order import Order
from engine.server.asking.sampling import Spell, speller
from engine.server.asking.structure import Structure
from engine.server.preparing.constraints import ModelSyntax, required_structure
from engine.server.preparing.rendering import render
from engine.text.parsers.families import parser_for
from engine.text.parsers.parts import Parser, Plain
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.requests import ChatRequest, CompletionRequest

_MOST_PROMPT_LOGPROBS = 1 << 19  # log probabilities of prompts in one answer: some ten megabytes
_COMPLETION_TOKENS = 16  # OpenAI's default of legacy completions


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in tokens, and how its choices are drawn and read."""

    tokens: tuple[int, ...]
    limits: tuple[int, ...]
    """How many tokens may follow, by choice."""
    samplings: tuple[Sampling, ...]
    """How each choice is drawn."""
    echo: str = ""
    """The text that comes back if the request asks for an echo."""
    structure: Structure | None = None
    """What every choice must match."""
    parser: Callable[[], Parser] = Plain
    """Returns a fresh parser for one choice."""
    shown: frozenset[int] = frozenset()
    """Special tokens that the parser sees as text."""
    called: str = "tool_calls"
    """The finish reason of a choice that ended by itself after a call."""

    @property
    def grammar(self) -> str | None:
        """What every choice must match, as in Add."""
        return None if self.structure is None else self.structure.grammar


def context_length(ready: Ready) -> int:
    """Return the most tokens of a prompt and its answer: the model's limit, or the whole pool if that is less."""
    return min(ready.max_model_len, ready.blocks * ready.block_size)


def prepare(order: Order, tokenizer: Tokenizer, ready: Ready) -> tuple[Prompt, ...]:
    """Turn the request's prompts into tokens; raise ApiError 400 for what the model cannot take."""
    request = order.request
    if any(token >= ready.vocab_size for token in order.stop_tokens):
        raise invalid_request("A stop token is outside the model's vocabulary.", param="stop_token_ids")
    spell = speller(tokenizer)
    if order.chat is not None:
        chatted = _chat_prompt(order, order.chat, tokenizer, ready, spell)
        _refuse_much(order, len(chatted.tokens))
        return (chatted,)
    prompts = []
    for prompt in request.prompt if isinstance(request, CompletionRequest) else ():  # always a CompletionRequest here
        tokens = tokens_of(prompt, tokenizer, ready, "prompt")
        echo = ""
        if order.echoes:
            echo = prompt if isinstance(prompt, str) else tokenizer.decode(prompt, special=order.output_options.special)
        prompts.append(_prompt(tokens, echo, order, ready, spell, tokenizer.begin))
    _refuse_much(order, sum([len(prompt.tokens) for prompt in prompts]) * request.n)  # each choice repeats it
    return tuple(prompts)


def _refuse_much(order: Order, tokens: int) -> None:
    """Refuse an answer that would return too many log probabilities of prompts.

    tokens: theirs, as often as they are returned.
    """
    if order.prompt_logprobs is not None and tokens * (order.prompt_logprobs + 1) > _MOST_PROMPT_LOGPROBS:
        raise invalid_request(
            f"The answer would contain more than {_MOST_PROMPT_LOGPROBS} log probabilities of prompts"
            " (tokens x choices x (top log probabilities + 1)).",
            param="logprobs" if order.output_options.prompt_logprobs is None else "prompt_logprobs",
            code="request_too_large",
        )


def _chat_prompt(order: Order, chat: Chat, tokenizer: Tokenizer, ready: Ready, spell: Spell) -> Prompt:
    """Return the prompt of a chat, and how its answers are constrained and read."""
    families, tools = tokenizer.families, chat.tools
    if tools is not None and families.tools is None:
        raise invalid_request(
            "This engine does not know how its model writes tool calls; its setting tool_parser says so.",
            param="tools",
            code="unsupported_parameter",
        )
    text = render(chat, tokenizer)
    _refuse_endless(text, tokenizer, ready, "messages")
    thinking = families.opens_reasoning(text, str(chat.messages[-1]["content"]) if chat.continued else None)
    structure = required_structure(ModelSyntax(families, tokenizer.special, thinking), tools, order.structure)
    functions = None if tools is None else tools.parameters
    parallel = tools is None or tools.parallel
    shown = [tokenizer.special(mark) for mark in families.marks(calls=tools is not None)]
    tokens = tokenizer.encode_chat(text)
    _refuse_unknown(tokens, ready, "messages")
    return replace(
        _prompt(tokens, "", order, ready, spell),
        structure=structure,
        parser=lambda: parser_for(families, functions=functions, thinking=thinking, new_id=_new_id, parallel=parallel),
        shown=frozenset([token for token in shown if token is not None]),
        called="stop" if tools is not None and tools.choice == "named" else "tool_calls",
    )


def _new_id() -> str:
    return uuid.uuid4().hex


def tokens_of(prompt: str | Sequence[int], tokenizer: Tokenizer, ready: Ready, param: str) -> tuple[int, ...]:
    """Return the tokens of a text, or those that came in its place; raise ApiError 400 for tokens that the model does
    not have.
    """
    if isinstance(prompt, str):
        _refuse_endless(prompt, tokenizer, ready, param)
        tokens = tokenizer.encode(prompt)
        _refuse_unknown(tokens, ready, param)
        return tokens
    if (unknown := next((token for token in prompt if not 0 <= token < ready.vocab_size), None)) is not None:
        message = f"Token {unknown} is outside the model's vocabulary of {ready.vocab_size}."
        raise invalid_request(message, param=param)
    return tuple(prompt)


def _refuse_unknown(tokens: Sequence[int], ready: Ready, param: str) -> None:
    """Refuse a text with a token that the tokenizer has and the model does not: fine-tunes add tokens to the tokenizer
    alone.
    """
    if max(tokens, default=0) >= ready.vocab_size:
        message = (
            f"The text contains a token of the tokenizer that is outside the model's vocabulary of {ready.vocab_size}."
        )
        raise invalid_request(message, param=param)


def _prompt(
    tokens: tuple[int, ...], echo: str, order: Order, ready: Ready, spell: Spell, begin: int | None = None
) -> Prompt:
    """Determine the lengths. An empty prompt becomes the token that begins a text, as at OpenAI."""
    param = "messages" if isinstance(order.request, ChatRequest) else "prompt"
    if not tokens and begin is not None:
        tokens = (begin,)
    if not tokens:
        raise invalid_request("The prompt contains no tokens.", param=param)
    room = context_length(ready) - len(tokens)
    most = max([one.max_tokens or 0 for one in order.choice_options])
    if room < max(most, 1):
        asked = f" and {most} new tokens were requested" if most else ", which leaves no room for an answer"
        raise too_long(f"The prompt has {len(tokens)} tokens{asked}.", context_length(ready), param)
    unasked = min(room, _COMPLETION_TOKENS) if isinstance(order.request, CompletionRequest) else room
    limits = tuple([unasked if one.max_tokens is None else max(one.max_tokens, 1) for one in order.choice_options])
    drawn = samplings(order.choice_options, limits, spell, ready.vocab_size)
    return Prompt(tokens, limits, drawn, echo, order.structure)


def _refuse_endless(text: str, tokenizer: Tokenizer, ready: Ready, param: str) -> None:
    """Refuse a text that is too long to fit even if every token were the longest one, before it is encoded."""
    if len(text) > context_length(ready) * tokenizer.table.longest:
        raise too_long(f"The prompt has {len(text)} characters.", context_length(ready), param)


def too_long(what: str, most: int, param: str) -> ApiError:
    """Return the ApiError 400 for a prompt beyond the context, which is `most` tokens; `what` is its size,
    as a sentence.
    """
    return invalid_request(
        f"This model's maximum context length is {most} tokens. {what}",
        param=param,
        code="context_length_exceeded",
    )
