"""Messages and texts become tokens, and it is settled how many may follow.

Rendering a template and encoding a long text take their time: `prepare` runs in a thread.
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
from engine.server.preparing.constraints import Writing, hold
from engine.server.preparing.rendering import render
from engine.text.parsers.families import parser_for
from engine.text.parsers.parts import Parser, Plain
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.requests import ChatRequest, CompletionRequest

_MOST_TOLD = 1 << 19  # log probabilities of prompts in one answer: some ten megabytes
_COMPLETION_TOKENS = 16  # OpenAI's default of legacy completions


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in tokens, how many may follow it in each choice, how they are drawn, and how they are read.

    echo: the text that comes back where echo asks. structure: what every choice must match. parser: gives a fresh
    parser for one choice. shown: special tokens that the parser sees as text. called: the finish reason of a choice
    that ended by itself behind a call.
    """

    tokens: tuple[int, ...]
    limits: tuple[int, ...]
    samplings: tuple[Sampling, ...]
    echo: str = ""
    structure: Structure | None = None
    parser: Callable[[], Parser] = Plain
    shown: frozenset[int] = frozenset()
    called: str = "tool_calls"

    @property
    def grammar(self) -> str | None:
        """What every choice must match, as in Add."""
        return None if self.structure is None else self.structure.grammar


def context_length(ready: Ready) -> int:
    """Most tokens that a prompt and its answer may have: the model's limit, or the whole pool where that is less."""
    return min(ready.max_model_len, ready.blocks * ready.block_size)


def prepare(order: Order, tokenizer: Tokenizer, ready: Ready) -> tuple[Prompt, ...]:
    """Turn the request's prompts into tokens; raises ApiError 400 for what the model cannot take."""
    request = order.request
    if any(token >= ready.vocab_size for token in order.stop_tokens):
        raise invalid_request("A stop token is outside the model's vocabulary.", param="stop_token_ids")
    spell = speller(tokenizer)
    if order.chat is not None:
        chatted = _chat_prompt(order, order.chat, tokenizer, ready, spell)
        _refuse_much(order, len(chatted.tokens))
        return (chatted,)
    prompts = []
    for prompt in request.prompt if isinstance(request, CompletionRequest) else ():  # what is no chat is one
        tokens = tokens_of(prompt, tokenizer, ready, "prompt")
        echo = ""
        if order.echoes:
            echo = prompt if isinstance(prompt, str) else tokenizer.decode(prompt, special=order.telling.special)
        prompts.append(_prompt(tokens, echo, order, ready, spell, tokenizer.begin))
    _refuse_much(order, sum([len(prompt.tokens) for prompt in prompts]) * request.n)  # it comes with each choice
    return tuple(prompts)


def _refuse_much(order: Order, tokens: int) -> None:
    """Refuse an answer that would tell too much of its prompts, which have `tokens` tokens as often as they come."""
    if order.prompt_logprobs is not None and tokens * (order.prompt_logprobs + 1) > _MOST_TOLD:
        raise invalid_request(
            f"The answer would contain more than {_MOST_TOLD} log probabilities of prompts"
            " (tokens x choices x (top log probabilities + 1)).",
            param="logprobs" if order.telling.prompt_logprobs is None else "prompt_logprobs",
            code="request_too_large",
        )


def _chat_prompt(order: Order, chat: Chat, tokenizer: Tokenizer, ready: Ready, spell: Spell) -> Prompt:
    """The prompt of a chat, and how its answers are held and read."""
    families, tools = tokenizer.families, chat.tools
    if tools is not None and families.tools is None:
        raise invalid_request(
            "This engine does not know how its model writes tool calls; its option --tool-parser sets it.",
            param="tools",
            code="unsupported_parameter",
        )
    text = render(chat, tokenizer)
    _refuse_endless(text, tokenizer, ready, "messages")
    thinking = families.opens_reasoning(text, str(chat.messages[-1]["content"]) if chat.continued else None)
    held = hold(Writing(families, tokenizer.special, thinking), tools, order.structure)
    functions = None if tools is None else tools.names
    parallel = tools is None or tools.parallel
    shown = [tokenizer.special(mark) for mark in families.marks(calls=tools is not None)]
    tokens = tokenizer.encode_chat(text)
    _refuse_unknown(tokens, ready, "messages")
    return replace(
        _prompt(tokens, "", order, ready, spell),
        structure=held,
        parser=lambda: parser_for(families, functions=functions, thinking=thinking, new_id=_new_id, parallel=parallel),
        shown=frozenset([token for token in shown if token is not None]),
        called="stop" if tools is not None and tools.choice == "named" else "tool_calls",
    )


def _new_id() -> str:
    return uuid.uuid4().hex


def tokens_of(prompt: str | Sequence[int], tokenizer: Tokenizer, ready: Ready, param: str) -> tuple[int, ...]:
    """The tokens of a text, or those that came in its place; raises ApiError 400 for what is none of this model's."""
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
    """Refuse a text with a token that the tokenizer has and the model has not: fine-tunes add some to the one alone."""
    if max(tokens, default=0) >= ready.vocab_size:
        message = (
            f"The text contains a token of the tokenizer that is outside the model's vocabulary of {ready.vocab_size}."
        )
        raise invalid_request(message, param=param)


def _prompt(
    tokens: tuple[int, ...], echo: str, order: Order, ready: Ready, spell: Spell, begin: int | None = None
) -> Prompt:
    """Settle the lengths. An empty prompt becomes the token that begins a text, as OpenAI's does."""
    param = "messages" if isinstance(order.request, ChatRequest) else "prompt"
    if not tokens and begin is not None:
        tokens = (begin,)
    if not tokens:
        raise invalid_request("The prompt contains no tokens.", param=param)
    room = context_length(ready) - len(tokens)
    most = max([wish.max_tokens or 0 for wish in order.wishes])
    if room < max(most, 1):
        asked = f" and {most} new tokens were requested" if most else ""
        raise too_long(f"The prompt has {len(tokens)} tokens{asked}.", context_length(ready), param)
    unasked = min(room, _COMPLETION_TOKENS) if isinstance(order.request, CompletionRequest) else room
    limits = tuple([unasked if wish.max_tokens is None else max(wish.max_tokens, 1) for wish in order.wishes])
    drawn = samplings(order.wishes, limits, spell, ready.vocab_size)
    return Prompt(tokens, limits, drawn, echo, order.structure)


def _refuse_endless(text: str, tokenizer: Tokenizer, ready: Ready, param: str) -> None:
    """Spare the work on a text that cannot fit, however well its tokens match it."""
    if len(text) > context_length(ready) * tokenizer.table.longest:
        raise too_long(f"The prompt has {len(text)} characters.", context_length(ready), param)


def too_long(what: str, most: int, param: str) -> ApiError:
    """Build the 400 for a prompt beyond the context, which is `most` tokens; `what` is its size, as a sentence."""
    return invalid_request(
        f"This model's maximum context length is {most} tokens. {what}",
        param=param,
        code="context_length_exceeded",
    )
