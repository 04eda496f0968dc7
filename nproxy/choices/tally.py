"""Tokens of a request's legs: what the client is told, what was computed, and what was saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nproxy.choices.commands import Spent
from nproxy.choices.continuation import whole
from nproxy.choices.strands import Strand
from nproxy.openai.usage import LegUsage, Usage, merge


def counted(strands: Collection[Strand], cut: Sequence[LegUsage]) -> list[LegUsage]:
    """The usage of each leg that counts for the client; one that was lost does so as far as it told.

    cut: what calls told in whose place others came. They do not count, but may have told the length of a prompt.
    """
    told = [(strand, strand.usage()) for strand in strands]
    own = [usage for strand, usage in told if strand.leg.prefix is None]
    prompts = {prompt: usage.prompt for prompt, usage in [*cut, *own] if usage is not None}
    return [
        LegUsage(usage.prompt, _whole(strand, usage.usage, prompts.get(usage.prompt)))
        for strand, usage in told
        if usage.usage is not None or not strand.lost
    ]


def _whole(strand: Strand, usage: Usage | None, prompt: int | None) -> Usage | None:
    """A leg's usage, and where its call went on from a prefix, what one call would have told."""
    prefix = strand.leg.prefix
    return usage if usage is None or prefix is None else whole(usage, prefix, prompt)


def spent(strands: Collection[Strand], told: Callable[[Usage], Usage], cut: Sequence[LegUsage]) -> Spent:
    """The tokens that the client is told, by `told`, and those that all calls computed as far as they told."""
    merged = merge(counted(strands, cut)).usage
    client = None if merged is None else told(merged)
    computed = [usage for _, usage in [*cut, *(strand.usage() for strand in strands)] if usage is not None]
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
