"""Tokens of a request's legs: what the client is told, what was computed, and what was saved."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nproxy.choices.commands import Spent
from nproxy.choices.strands import Strand
from nproxy.openai.usage import LegUsage, Usage, merge


def counted(strands: Collection[Strand]) -> list[LegUsage]:
    """The usage of each leg that counts for the client; one that was lost does so as far as it told."""
    told = [(strand, strand.usage()) for strand in strands]
    return [usage for strand, usage in told if usage.usage is not None or not strand.lost]


def spent(strands: Collection[Strand], told: Callable[[Usage], Usage]) -> Spent:
    """The tokens that the client is told, by `told`, and those that the legs computed as far as they told."""
    whole = merge(counted(strands)).usage
    client = None if whole is None else told(whole)
    computed = [usage for strand in strands if (usage := strand.usage().usage) is not None]
    return Spent(
        client.prompt if client else None,
        client.completion if client else None,
        sum(usage.prompt for usage in computed) if computed else None,
        sum(usage.completion for usage in computed) if computed else None,
        saved(strands),
    )


def saved(strands: Collection[Strand]) -> int:
    """Prompt tokens that a call for each choice would have cost besides.

    Choices of one call share their prompt. A later leg finds in the upstream's cache what the first leg of its prompt
    has left there; what that one found there itself is older than the request, and does not count.
    """
    tokens = 0
    found_by_first: dict[int | None, int] = {}
    for strand in strands:
        prompt, usage = strand.usage()
        if usage is None:
            continue
        tokens += usage.prompt * (strand.leg.width - 1)
        cached = (usage.prompt_details or {}).get("cached_tokens", 0)
        tokens += max(0, cached - found_by_first.setdefault(prompt, cached))
    return tokens
