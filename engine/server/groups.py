"""An order and its prompts become groups for the core: the last step that all ways into the engine share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.messages import Add, Choice, Ready, wrap_seed
from engine.server.answering.output import Manner
from engine.server.asking.order import Order
from engine.server.preparing.prompts import Prompt
from engine.text.detokenizer import TokenBytes
from nproxy.openai.errors import invalid_request


def groups(
    order: Order, prompts: Sequence[Prompt], ready: Ready, random: Random, *, salt: str = "", adapter: str | None = None
) -> tuple[Add, ...]:
    """One group per prompt, numbered from 0; who sends them to a core gives them numbers of its own.

    salt, adapter: as in Add. Raises ApiError 400 for what cannot stand together.
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
                choices(order, prompt, random),
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


def manners(order: Order, prompts: Sequence[Prompt], table: TokenBytes) -> list[list[Manner]]:
    """How the tokens of each prompt's choices are read."""
    telling = order.telling
    return [
        [
            Manner(
                stops=wish.stops,
                min_tokens=wish.sampling.min_tokens,
                keep_stop=telling.keep_stop,
                parser=prompt.parser,
                shown=table.special if telling.special else prompt.shown,
                called=prompt.called,
                tells=telling.ids or order.drawn_logprobs is not None,
                echo=prompt.echo,
                prompt=prompt.tokens if order.echoes and telling.logprobs is not None else (),
                silent=wish.max_tokens == 0,
            )
            for wish in order.wishes
        ]
        for prompt in prompts
    ]


def choices(order: Order, prompt: Prompt, random: Random) -> tuple[Choice, ...]:
    """The choices of one prompt as the core takes them.

    Choice i has the seed that it names itself, or the client's seed + i (the same for each prompt), or a
    random number of 31 bits + i.
    """
    first = random.getrandbits(31) if order.seed is None else order.seed
    return tuple(
        [
            Choice(_seed(wish.seed, first + number, random), limit, sampling)
            for number, (wish, limit, sampling) in enumerate(
                zip(order.wishes, prompt.limits, prompt.samplings, strict=True)
            )
        ]
    )


def _seed(own: int | None, otherwise: int, random: Random) -> int:
    if own == -1:
        return random.getrandbits(31)
    return wrap_seed(otherwise) if own is None else own
