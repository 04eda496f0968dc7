"""Copies: choices that are equal anyway are computed once and shown n times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nproxy.choices.commands import Spent
from nproxy.choices.leg_output import Choice
from nproxy.choices.merge import Merge
from nproxy.choices.records import SentRecord
from nproxy.choices.settings import Names
from nproxy.openai.requests import Request
from nproxy.openai.usage import Usage


class Copies(Merge):
    """Shows the one choice that was brought for each prompt as the client's n.

    The client is told the tokens of all n, as delivered, or of all that `best_of` chose from. Spent contains those that
    were really computed.
    """

    def __init__(
        self, request: Request, names: Names, record: Callable[[], SentRecord] | None, *, counts_all: bool = False
    ) -> None:
        super().__init__(request, names, record, n=1, counts_all=counts_all)

    def spent(self) -> Spent:
        """Like Merge.spent; the prompts of the copies were saved."""
        spent = super().spent()
        copied = (spent.client_prompt or 0) * (self._request.drawn - 1)
        return replace(spent, prompt_saved=spent.prompt_saved + copied)

    def _shown_as(self, choice: Choice) -> Sequence[int]:
        n = self._request.n
        return range(choice.index * n, (choice.index + 1) * n)

    def _client_usage(self, usage: Usage) -> Usage:
        n = self._request.drawn
        details = usage.completion_details
        return replace(
            usage,
            completion=usage.completion * n,
            completion_details=None if details is None else {key: count * n for key, count in details.items()},
        )
