"""What this process knows from the ledger's answers about how much of their rates the keys have spent."""

from __future__ import annotations

from collections import OrderedDict

from nproxy.gateway.admission.messages import Kind, Level, Refused
from nproxy.gateway.admission.rates import wait_for
from nproxy.gateway.callers import Caller

MOST_LEVELS = 4096
"""The most keys that are remembered, for responses that are made without asking the ledger."""


class KnownRates:
    """The levels last heard of each key. It may have spent more since then in another process."""

    def __init__(self) -> None:
        self._heard: OrderedDict[str, tuple[float, tuple[Level, ...]]] = OrderedDict()

    def levels(self, caller: Caller, now: float) -> list[Level]:
        """Return the level of each rate that limits a caller."""
        rates = caller.rates
        limits: tuple[tuple[Kind, int | None], ...] = (
            ("requests", rates.requests),
            ("choices", rates.choices),
            ("tokens", rates.tokens),
        )
        heard, levels = self._heard.get(caller.bucket, (0.0, ()))
        owed = {level.what: max(0.0, level.behind - (now - heard)) * level.limit for level in levels}
        return [Level(what, limit, owed.get(what, 0.0) / limit) for what, limit in limits if limit is not None]

    def correct(self, bucket: str, levels: tuple[Level, ...], now: float) -> None:
        """Replace the levels of a key, if any are known."""
        if bucket in self._heard:
            self._heard[bucket] = now, levels

    def hear(self, caller: Caller, levels: tuple[Level, ...], now: float) -> None:
        """Store the levels that an answer reports for a caller."""
        self._heard[caller.bucket] = now, levels
        self._heard.move_to_end(caller.bucket)
        if len(self._heard) > MOST_LEVELS:
            self._heard.popitem(last=False)

    def refusal(self, caller: Caller, now: float) -> Refused | None:
        """Return a refusal if the known levels do not allow the caller even one choice now, else None.

        Token rates are not considered.
        """
        for level in self.levels(caller, now):
            wait = wait_for(1, level.limit, level.behind)
            if wait and level.what != "tokens":
                return Refused("", level.what, wait, levels=(level,))
        return None
