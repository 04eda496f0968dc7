"""Prompts of an exact length, each unlike all others from its beginning: no cache of an earlier one helps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

WORDS = (  # noqa: SIM905 (a list of forty strings reads worse)
    "river stone candle winter harbor letter garden silver mountain window bridge summer forest island thunder ladder"
    " orange village teacher market paper engine kitchen planet horse ocean desert music doctor football camera pencil"
    " basket dragon tunnel violin pepper blanket mirror rocket"
).split()


def prompt(encode: Callable[[str], Sequence[int]], length: int, number: int) -> tuple[int, ...]:
    """Token ids, `length` of them: the beginning of a text of words; each `number` has its own.

    Texts that are needed together have numbers in a row: for as many as there are words, no two have one first word.
    """
    chance = random.Random(number)
    words = [WORDS[number % len(WORDS)], *chance.choices(WORDS, k=length)]
    ids = tuple(encode(" ".join(words)))[:length]
    if len(ids) < length:
        raise ValueError(f"{length + 1} words were {len(ids)} tokens only")
    return ids
