"""Prompts of an exact length that all begin differently: no cache of an earlier prompt helps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

WORDS = (  # noqa: SIM905 (a list of forty strings reads worse)
    "river stone candle winter harbor letter garden silver mountain window bridge summer forest island thunder ladder"
    " orange village teacher market paper engine kitchen planet horse ocean desert music doctor football camera pencil"
    " basket dragon tunnel violin pepper blanket mirror rocket"
).split()


def prompt(encode: Callable[[str], Sequence[int]], length: int, number: int) -> tuple[int, ...]:
    """Return `length` token ids, the beginning of a text of words; each `number` has its own text.

    Texts that are used together have consecutive numbers: among as many as there are words, no two have the same first
    word.
    """
    chance = random.Random(number)
    words = [WORDS[number % len(WORDS)], *chance.choices(WORDS, k=length)]
    ids = tuple(encode(" ".join(words)))[:length]
    if len(ids) < length:
        raise ValueError(f"{length + 1} words were {len(ids)} tokens only")
    return ids
