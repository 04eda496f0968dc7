"""How far keys are with their rates, as far as this process knows: the ledger's answers tell."""

from __future__ import annotations

from collections import OrderedDict

from nproxy.gateway.admission.messages import Kind, Level, Refused
from nproxy.gateway.admission.rates import wait_for
from nproxy.gateway.callers import UNLIMITED, Caller, Rates

MOST_LEVELS = 4096
"""Keys that are remembered, for answers that come without asking the ledger."""


class KnownRates:
    """What was heard last of each key, which may have spent more since in another process.

    for_all: the limits of keys without their own.
    """

    def __init__(self) -> None:
        self.for_all = UNLIMITED
        self._heard: OrderedDict[str, tuple[float, tuple[Level, ...]]] = OrderedDict()

    def limits(self, caller: Caller) -> Rates:
        """The rates that limit a caller; UNLIMITED itself where none does."""
        own, all = caller.rates, self.for_all
        if own is UNLIMITED or own == UNLIMITED:
            return all
        return Rates(own.requests or all.requests, own.choices or all.choices, own.tokens or all.tokens)

    def levels(self, caller: Caller, now: float) -> list[Level]:
        """How far a caller is with each rate that limits it."""
        rates = self.limits(caller)
        if rates is UNLIMITED:
            return []
        limits: tuple[tuple[Kind, int | None], ...] = (
            ("requests", rates.requests),
            ("choices", rates.choices),
            ("tokens", rates.tokens),
        )
        heard, levels = self._heard.get(caller.bucket, (0.0, ()))
        behind = {level.what: max(0.0, level.behind - (now - heard)) for level in levels}
        return [Level(what, limit, behind.get(what, 0.0)) for what, limit in limits if limit is not None]

    def correct(self, bucket: str, levels: tuple[Level, ...], now: float) -> None:
        """Take what is told of a key unasked, where anything is known of it."""
        if bucket in self._heard:
            self._heard[bucket] = now, levels

    def hear(self, caller: Caller, levels: tuple[Level, ...], now: float) -> None:
        """Take what an answer told of a caller."""
        self._heard[caller.bucket] = now, levels
        self._heard.move_to_end(caller.bucket)
        if len(self._heard) > MOST_LEVELS:
            self._heard.popitem(last=False)

    def refusal(self, caller: Caller, now: float) -> Refused | None:
        """Why a caller need not even ask for one choice now, if so: what is known here is spent, or spoken for."""
        for level in self.levels(caller, now):
            wait = wait_for(1, level.limit, level.behind)
            if wait and level.what != "tokens":
                return Refused("", level.what, wait, levels=(level,))
        return None
