"""best_of: of the choices that were drawn for each prompt, the client gets the n likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from engine.server.answering.choice_text import ChoiceText


def the_best(choices: Sequence[ChoiceText], drawn: int, n: int) -> list[ChoiceText]:
    """Return, of every `drawn` choices, which belong to one prompt, the n best, best first; the earlier one
    if equal.
    """
    best: list[ChoiceText] = []
    for first in range(0, len(choices), drawn):
        best += sorted(choices[first : first + drawn], key=mean_logprob, reverse=True)[:n]
    return best


def mean_logprob(choice: ChoiceText) -> float:
    """Return the mean log probability of a choice's own tokens, including its stop token; minus infinity
    without a token.
    """
    scores = [one.logprobs.own for one in choice.reported if one.logprobs is not None and not one.echoed]
    return sum(scores) / len(scores) if scores else -inf
