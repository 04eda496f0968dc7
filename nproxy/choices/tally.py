"""Tokens of a request's legs: what the client is told, what was computed, and what was saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nproxy.choices.commands import Spent
from nproxy.choices.continuation import as_one_call
from nproxy.choices.leg_output import LegOutput
from nproxy.openai.usage import LegUsage, Usage, merge, running

_Reported = tuple[LegOutput, LegUsage]
"""A leg, and the usage that it reported."""


class Tally:
    """Counts the tokens of one request's legs. outputs: what each leg sent, by number; its owner changes it."""

    def __init__(self, outputs: Mapping[int, LegOutput]) -> None:
        self._outputs = outputs
        self._cut: list[_Reported] = []  # calls that others replaced
        self._total: Usage | None = None  # the running total that was returned last
        self._running: RunningTotal | None = None  # None while calls of one choice have to be counted together
        self._settled: tuple[list[_Reported], Usage | None] | None = None

    def forgo(self, output: LegOutput) -> None:
        """Note that other calls replace this one: its tokens were spent, and do not count for the client."""
        self._cut.append((output, _so_far(output)))
        self.renew()

    def renew(self) -> None:
        """Note that calls take over from others: the running total is to be added up anew."""
        self._running = None

    def settled(self) -> tuple[Usage | None, bool]:
        """Return what `merge` does for all legs, which are over. It is not computed again for `spent`."""
        each = self._each()
        usage, prompts_differ = merge(self._counted(each))
        self._settled = each, usage
        return usage, prompts_differ

    def running(self, reporting: LegOutput) -> Usage | None:
        """Return the total so far, as this leg has reported usage. It keeps its value while calls repeat what came.

        Only this leg's usage is looked up, because all legs report with each of their chunks.
        """
        if self._running is not None:
            total = self._running.report(reporting.leg.number, reporting.usage())
        else:
            each = self._each()
            total = running(self._counted(each))
            if not any(output.shares_choices or output.leg.prefix for output, _ in each):
                self._running = RunningTotal()
                for output, leg in each:
                    self._running.report(output.leg.number, leg)
        if total is not None and (self._total is None or total.completion >= self._total.completion):
            self._total = total
        return self._total

    def spent(self, for_client: Callable[[Usage], Usage]) -> Spent:
        """Return the tokens that the client is told, by `for_client`, and those that all calls have computed.

        These are what the calls reported; of a stream that reported nothing, it is the number of its pieces, and of one
        that broke off, if it is more.
        """
        if self._settled is None:  # it broke off
            each = [(output, _so_far(output)) for output in self._outputs.values()]
            merged, _ = merge(self._counted(each))
        else:
            each, merged = self._settled
        client = None if merged is None else for_client(merged)
        prompt = completion = calls = 0
        for output, (_, usage) in (*self._cut, *each):
            if usage is not None:
                prompt, completion, calls = prompt + usage.prompt, completion + usage.completion, calls + 1
            else:
                completion += output.pieces
        return Spent(
            client.prompt if client else None,
            client.completion if client else None,
            prompt if calls else None,
            completion if calls or completion else None,
            saved(each),
        )

    def _each(self) -> list[_Reported]:
        return [(output, output.usage()) for output in self._outputs.values()]

    def _counted(self, each: Sequence[_Reported]) -> list[LegUsage]:
        """Return the usage of each leg that counts for the client; a leg that was lost counts as far as it reported.

        Usage of calls that were replaced does not count, but may tell the length of a prompt.
        """
        counted: list[_Reported] = []
        own: list[LegUsage] = []  # of calls that continue nothing
        for output, leg in each:
            if leg.usage is None and output.lost:
                continue
            if output.shares_choices:
                leg = output.usage_for_client(leg)
            counted.append((output, leg))
            if output.leg.prefix is None:
                own.append(leg)
        if len(own) == len(counted):
            return own
        replaced = [leg for output, leg in self._cut if output.leg.prefix is None]
        prompts = {prompt: usage.prompt for prompt, usage in [*replaced, *own] if usage is not None}
        return [
            LegUsage(leg.prompt, _as_one_call(output, leg.usage, prompts.get(leg.prompt))) for output, leg in counted
        ]


class RunningTotal:
    """The running total of legs, brought up to date by one leg at a time. The rules are those of `usage.merge`."""

    def __init__(self) -> None:
        self._completions: dict[int, int] = {}  # by leg
        self._completion = 0
        self._prompts: dict[int | None, int] = {}

    def report(self, leg: int, reported: LegUsage) -> Usage | None:
        """Take what a leg has reported so far; return the total, None if nothing was reported at all."""
        prompt, usage = reported
        if usage is not None:
            self._completion += usage.completion - self._completions.get(leg, 0)
            self._completions[leg] = usage.completion
            self._prompts[prompt] = max(usage.prompt, self._prompts.get(prompt, 0))
        if not self._completions:
            return None
        whole = self._prompts.get(None)  # of a leg that carries all prompts
        return Usage(sum(self._prompts.values()) if whole is None else whole, self._completion)


def _as_one_call(output: LegOutput, usage: Usage | None, prompt: int | None) -> Usage | None:
    """Return a leg's usage; if its call continued from a prefix, the usage that one call would have reported."""
    prefix = output.leg.prefix
    return usage if usage is None or prefix is None else as_one_call(usage, prefix, prompt)


def _so_far(output: LegOutput) -> LegUsage:
    """Return what a leg has reported; if it broke off, the completion counts all of its pieces.

    The last counts of such a leg may be those of its beginning.
    """
    prompt, usage = reported = output.usage()
    if usage is None or usage.completion >= output.pieces or output.whole:
        return reported
    return LegUsage(prompt, replace(usage, completion=output.pieces))


def saved(each: Sequence[_Reported]) -> int:
    """Return the prompt tokens that would also have been computed if each choice had been a call of its own.

    Choices of one call share their prompt. A later leg finds in the upstream's cache what the first leg of its prompt
    has left there; what that first leg found there is older than the request, and does not count.
    """
    tokens = 0
    found_by_first: dict[int | None, int] = {}
    for output, (prompt, usage) in each:
        if usage is None:
            continue
        if output.brought > output.answered:
            tokens += usage.prompt * (output.brought - output.answered) // output.answered
        cached = usage.prompt_details.get("cached_tokens", 0) if usage.prompt_details else 0
        first = found_by_first.setdefault(prompt, cached)
        if cached > first:
            tokens += cached - first
    return tokens
