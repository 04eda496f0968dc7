"""Turns an order and its prompts into groups for the core: the last step that all ways into the engine share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from engine.messages import Add, Choice, Ready, wrap_seed
from engine.server.answering.output import Manner
from engine.server.asking.choice_options import ChoiceOptions
from engine.server.asking.order import Order
from engine.server.preparing.prompts import Prompt
from engine.text.detokenizer import TokenBytes
from nproxy.openai.errors import invalid_request

_EXCLUDING: Mapping[str, Callable[[ChoiceOptions], bool]] = {
    "allowed_token_ids": lambda one: one.sampling.allowed_tokens is not None,
    "bad_words": lambda one: bool(one.bad_words),
    "min_tokens": lambda one: one.sampling.min_tokens > 0,
}


def groups(
    order: Order, prompts: Sequence[Prompt], ready: Ready, random: Random, *, salt: str = "", adapter: str | None = None
) -> tuple[Add, ...]:
    """Return one group per prompt, numbered from 0; whoever sends them to a core replaces these numbers.

    salt, adapter: as in Add. Raises ApiError 400 for options that exclude each other.
    """
    held = next((prompt.structure.field for prompt in prompts if prompt.structure is not None), None)
    if held is not None and order.ignore_eos:
        message = f"'ignore_eos' cannot be used together with '{held}', which ends the answer when it is complete."
        raise invalid_request(message, param="ignore_eos")
    stop_tokens = order.stop_tokens if order.ignore_eos else order.stop_tokens | ready.eos_tokens
    return tuple(
        [
            Add(
                number,
                prompt.tokens,
                _choices(order, prompt, random),
                stop_tokens,
                logprobs=order.drawn_logprobs,
                prompt_logprobs=order.prompt_logprobs,
                salt=salt,
                grammar=prompt.grammar,
                adapter=adapter,
            )
            for number, prompt in enumerate(prompts)
        ]
    )


def rules(order: Order, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Return the names of the request's fields that exclude tokens; if one asks for a structure, it is the last.

    Of the same field of several choices, the first is named.
    """
    found: list[str] = []
    for name, used in _EXCLUDING.items():
        found += [one.where + name for one in order.choice_options if used(one)][:1]
    if (structure := next((prompt.structure for prompt in prompts if prompt.structure is not None), None)) is not None:
        tools = None if order.chat is None else order.chat.tools
        found.append(structure.field if tools is None or tools.choice == "auto" else "tool_choice")
    return tuple(found)


def manners(order: Order, prompts: Sequence[Prompt], table: TokenBytes) -> list[list[Manner]]:
    """Return how the tokens of each prompt's choices are read."""
    output_options = order.output_options
    return [
        [
            Manner(
                stops=options.stops,
                stop_tokens=order.stop_tokens,
                min_tokens=options.sampling.min_tokens,
                keep_stop=output_options.keep_stop,
                parser=prompt.parser,
                shown=table.special if output_options.special else prompt.shown,
                called=prompt.called,
                reports=output_options.ids or order.drawn_logprobs is not None,
                echo=prompt.echo,
                prompt=prompt.tokens if order.echoes and output_options.logprobs is not None else (),
                silent=options.max_tokens == 0,
            )
            for options in order.choice_options
        ]
        for prompt in prompts
    ]


def _choices(order: Order, prompt: Prompt, random: Random) -> tuple[Choice, ...]:
    """Return the choices of one prompt in the core's form.

    Choice i has the seed that it names itself, or the client's seed + i (the same for each prompt), or a random number
    of 31 bits + i.
    """
    first = random.getrandbits(31) if order.seed is None else order.seed
    return tuple(
        [
            Choice(_seed(options.seed, first + number, random), limit, sampling)
            for number, (options, limit, sampling) in enumerate(
                zip(order.choice_options, prompt.limits, prompt.samplings, strict=True)
            )
        ]
    )


def _seed(own: int | None, otherwise: int, random: Random) -> int:
    if own == -1:
        return random.getrandbits(31)
    return wrap_seed(otherwise) if own is None else own
