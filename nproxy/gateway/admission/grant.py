"""What one request that was let in holds, and what it has to pay."""

from __future__ import annotations

from typing import Protocol, Self

from nproxy.gateway.admission.messages import Ask
from nproxy.gateway.callers import Caller


class Issuer(Protocol):
    """Who gives permits, and takes them back."""

    async def move(self, caller: Caller, ask: Ask, upstream: str) -> None:
        """Take permits to another upstream. Raises ApiError where it has none."""

    def count_tokens(self, caller: Caller, prompt: int, completion: int) -> None:
        """So many tokens were spent."""

    def leave(self, ask: Ask, grant: Grant) -> None:
        """The permits are free again."""


class Grant:
    """A request's permits, held while the block runs.

    tokens: that it has spent; None while nobody has told. least: what it has for sure.
    """

    __slots__ = ("_ask", "_caller", "_issuer", "least", "tokens")

    def __init__(self, ask: Ask, caller: Caller, issuer: Issuer) -> None:
        self.tokens: int | None = None
        self.least = 0
        self._ask = ask
        self._caller = caller
        self._issuer = issuer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._issuer.leave(self._ask, self)

    def spend(self, prompt: int, completion: int) -> None:
        """Tokens were spent, beyond those of an earlier call; what was guessed of them counts no more."""
        self.tokens = (self.tokens or 0) + prompt + completion
        self._issuer.count_tokens(self._caller, prompt, completion)

    def came(self, tokens: int) -> None:
        """At least so many more were spent: who leaves a stream before its usage pays for what was guessed or this."""
        self.least += tokens

    @property
    def owed(self) -> int | None:
        """The tokens to charge; None for those that were charged at first."""
        charged = min(self._ask.tokens, self._ask.rates.tokens or 0)
        return self.least if self.tokens is None and self.least > charged else self.tokens

    def nothing_came(self) -> None:
        """The client got an error: where nobody told of tokens, none were spent."""
        self.tokens = self.tokens or 0

    async def move(self, upstream: str) -> None:
        """Take the permits to another upstream, waiting for its own as for the first.

        Raises ApiError where it has none; the request then has none at any upstream, and may move on or end.
        """
        await self._issuer.move(self._caller, self._ask, upstream)
