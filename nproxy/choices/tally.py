"""Tokens of a request's legs: what the client is told, what was computed, and what was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nproxy.choices.commands import Spent
from nproxy.choices.continuation import whole
from nproxy.choices.leg_output import LegOutput
from nproxy.openai.usage import LegUsage, Merged, Usage, merge, running

_Told = tuple[LegOutput, LegUsage]
"""A leg, and what it has told."""


class Tally:
    """Counts the tokens of one request's legs. outputs: what each leg has told, by number; their owner changes them."""

    def __init__(self, outputs: Mapping[int, LegOutput]) -> None:
        self._outputs = outputs
        self._cut: list[LegUsage] = []  # what calls told in whose place others came
        self._total: Usage | None = None  # the running total, as it was given last
        self._settled: tuple[list[_Told], Merged] | None = None

    def forgo(self, output: LegOutput) -> None:
        """Other calls take the place of this one: what it told was spent, and does not count for the client."""
        self._cut.append(output.usage())

    def settled(self) -> Merged:
        """The usage of all legs, which are over: it is not counted again for what is spent."""
        self._settled = _, merged = self._together()
        return merged

    def running(self) -> Usage | None:
        """The total so far; it stands still while calls come again."""
        total = running(self._counted(self._each()))
        if total is not None and (self._total is None or total.completion >= self._total.completion):
            self._total = total
        return self._total

    def spent(self, told: Callable[[Usage], Usage]) -> Spent:
        """The tokens that the client is told, by `told`, and those that all calls computed as far as they told."""
        each, (merged, _) = self._settled or self._together()
        client = None if merged is None else told(merged)
        prompt = completion = calls = 0
        for _, usage in (*self._cut, *[leg for _, leg in each]):
            if usage is not None:
                prompt, completion, calls = prompt + usage.prompt, completion + usage.completion, calls + 1
        return Spent(
            client.prompt if client else None,
            client.completion if client else None,
            prompt if calls else None,
            completion if calls else None,
            saved(each),
        )

    def _together(self) -> tuple[list[_Told], Merged]:
        each = self._each()
        return each, merge(self._counted(each))

    def _each(self) -> list[_Told]:
        return [(output, output.usage()) for output in self._outputs.values()]

    def _counted(self, each: Sequence[_Told]) -> list[LegUsage]:
        """The usage of each leg that counts for the client; one that was lost does so as far as it told.

        What cut calls told does not count, but may have told the length of a prompt.
        """
        counted = [(output, told) for output, told in each if told.usage is not None or not output.lost]
        own = [told for output, told in counted if output.leg.prefix is None]
        if len(own) == len(counted):
            return own
        prompts = {prompt: usage.prompt for prompt, usage in [*self._cut, *own] if usage is not None}
        return [LegUsage(told.prompt, _whole(output, told.usage, prompts.get(told.prompt))) for output, told in counted]


def _whole(output: LegOutput, usage: Usage | None, prompt: int | None) -> Usage | None:
    """A leg's usage, and where its call went on from a prefix, what one call would have told."""
    prefix = output.leg.prefix
    return usage if usage is None or prefix is None else whole(usage, prefix, prompt)


def saved(each: Sequence[_Told]) -> int:
    """Prompt tokens that a call for each choice would have cost besides.

    Choices of one call share their prompt. A later leg finds in the upstream's cache what the first leg of its prompt
    has left there; what that one found there itself is older than the request, and does not count.
    """
    tokens = 0
    found_by_first: dict[int | None, int] = {}
    for output, (prompt, usage) in each:
        if usage is None:
            continue
        tokens += usage.prompt * (output.leg.width - 1)
        cached = (usage.prompt_details or {}).get("cached_tokens", 0)
        tokens += max(0, cached - found_by_first.setdefault(prompt, cached))
    return tokens
