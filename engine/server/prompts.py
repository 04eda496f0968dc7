"""Messages and texts become tokens, and it is settled how many may follow.

Rendering a template and encoding a long text take their time: `prepare` runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.messages import Ready, Sampling
from engine.server.order import Order
from engine.server.wishes import samplings
from engine.text.parsers.parts import Parser, Plain
from engine.text.template import TemplateRejected
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.requests import ChatRequest, CompletionRequest

_COMPLETION_TOKENS = 16  # OpenAI's default of legacy completions


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in tokens, how many may follow it in each choice, how they are drawn, and how they are read.

    echo: the text that comes back where echo asks. grammar: what every choice must match, in llguidance's
    notation. parser: gives a fresh parser for one choice. shown: special tokens that the parser sees as text.
    """

    tokens: tuple[int, ...]
    limits: tuple[int, ...]
    samplings: tuple[Sampling, ...]
    echo: str = ""
    grammar: str | None = None
    parser: Callable[[], Parser] = Plain
    shown: frozenset[int] = frozenset()


def context_length(ready: Ready) -> int:
    """Most tokens that a prompt and its answer may have: the model's limit, or the whole pool where that is less."""
    return min(ready.max_model_len, ready.blocks * ready.block_size)


def prepare(order: Order, tokenizer: Tokenizer, ready: Ready) -> tuple[Prompt, ...]:
    """Turn the request's prompts into tokens; raises ApiError 400 for what the model cannot take."""
    request = order.request
    if any(token >= ready.vocab_size for token in order.stop_tokens):
        raise invalid_request("A stop token is outside the model's vocabulary.", param="stop_token_ids")
    if isinstance(request, ChatRequest):
        text = chat_text(order, tokenizer)
        _refuse_endless(text, tokenizer, ready, "messages")
        return (_prompt(tokenizer.encode_chat(text), "", order, tokenizer, ready),)
    prompts = []
    for prompt in request.prompt:
        tokens = tokens_of(prompt, tokenizer, ready, "prompt")
        echo = ""
        if request.echo:
            echo = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
        prompts.append(_prompt(tokens, echo, order, tokenizer, ready, tokenizer.begin))
    return tuple(prompts)


def tokens_of(prompt: str | Sequence[int], tokenizer: Tokenizer, ready: Ready, param: str) -> tuple[int, ...]:
    """The tokens of a text, or those that came in its place; raises ApiError 400 for what is none of this model's."""
    if isinstance(prompt, str):
        _refuse_endless(prompt, tokenizer, ready, param)
        return tokenizer.encode(prompt)
    if any(not 0 <= token < ready.vocab_size for token in prompt):
        raise invalid_request("A token is outside the model's vocabulary.", param=param)
    return tuple(prompt)


def _prompt(
    tokens: tuple[int, ...], echo: str, order: Order, tokenizer: Tokenizer, ready: Ready, begin: int | None = None
) -> Prompt:
    """Settle the lengths. An empty prompt becomes the token that begins a text, as OpenAI's does."""
    param = "messages" if isinstance(order.request, ChatRequest) else "prompt"
    if not tokens and begin is not None:
        tokens = (begin,)
    if not tokens:
        raise invalid_request("The prompt holds no token.", param=param)
    room = context_length(ready) - len(tokens)
    most = max([wish.max_tokens or 0 for wish in order.wishes])
    if room < max(most, 1):
        asked = f" and {most} new tokens were asked for" if most else ""
        raise too_long(f"The prompt has {len(tokens)} tokens{asked}.", context_length(ready), param)
    unasked = min(room, _COMPLETION_TOKENS) if isinstance(order.request, CompletionRequest) else room
    limits = tuple([unasked if wish.max_tokens is None else max(wish.max_tokens, 1) for wish in order.wishes])
    return Prompt(tokens, limits, samplings(order.wishes, limits, tokenizer, ready.vocab_size), echo)


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


def chat_text(order: Order, tokenizer: Tokenizer, *, generation: bool = True) -> str:
    """Render a chat by the model's template; raises ApiError 400 where that cannot be.

    generation: with the beginning of the assistant's turn, for an answer to follow.
    """
    if tokenizer.template is None:
        raise invalid_request("This model has no chat template; use /v1/completions.", param="messages")
    try:
        return tokenizer.template.render(order.messages, order.variables, generation=generation)
    except TemplateRejected as error:
        raise invalid_request(str(error), param="messages") from error
