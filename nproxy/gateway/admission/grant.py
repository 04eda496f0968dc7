"""The permits that an admitted request holds, and the tokens that it has to pay."""

from __future__ import annotations

from typing import Protocol, Self

from nproxy.gateway.admission.messages import Ask
from nproxy.telemetry.metrics import KeySeries


class Issuer(Protocol):
    """Issues permits, and takes them back."""

    async def move(self, ask: Ask, upstream: str) -> None:
        """Move permits to another upstream. Raises ApiError if it has none."""

    def leave(self, ask: Ask, grant: Grant) -> None:
        """Return the permits."""


class Grant:
    """A request's permits, held while the block runs.

    tokens: those that it has spent; None if unknown. least: it has spent at least so many.
    """

    __slots__ = ("_ask", "_issuer", "_series", "least", "tokens")

    def __init__(self, ask: Ask, series: KeySeries, issuer: Issuer) -> None:
        """series: the metrics of the key."""
        self.tokens: int | None = None
        self.least = 0
        self._ask = ask
        self._series = series
        self._issuer = issuer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._issuer.leave(self._ask, self)

    def spend(self, prompt: int, completion: int) -> None:
        """Note that tokens were spent, in addition to those of earlier calls. They replace the estimate."""
        self.tokens = (self.tokens or 0) + prompt + completion
        tokens = self._series.tokens
        tokens["prompt"].value += prompt
        tokens["completion"].value += completion

    def spent_at_least(self, tokens: int) -> None:
        """Note that at least so many more were spent.

        If the client leaves a stream before its usage is known, it pays for the estimate or for these, if they are
        more.
        """
        self.least += tokens

    @property
    def owed(self) -> int | None:
        """The tokens to charge; None if those that were charged at first stand."""
        if self.tokens is not None:
            return self.tokens
        charged = min(self._ask.tokens, self._ask.rates.tokens or 0)
        return self.least if self.least > charged else None

    def nothing_came(self) -> None:
        """Note that the client got an error: if no usage was reported, no tokens were spent."""
        self.tokens = self.tokens or 0

    def broke_off(self) -> None:
        """Note that an answer failed after it had begun: if no usage was reported, what came of it was spent."""
        self.tokens = self.least if self.tokens is None else self.tokens

    async def move(self, upstream: str) -> None:
        """Move the permits to another upstream, and wait for its permits as for those of the first.

        Raises ApiError if it has none. The request then has none at any upstream, and may move again or end.
        """
        await self._issuer.move(self._ask, upstream)
