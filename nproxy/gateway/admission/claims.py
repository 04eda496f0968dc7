"""The ledger's records: one of each key, and one of each request."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nproxy.gateway.admission.messages import Ask, Level
from nproxy.gateway.admission.rates import Charge, Meters, levels_of


@dataclass(slots=True, eq=False)
class Account:
    """What is counted for one key."""

    weight: float = 1.0
    """Its share, against those of other keys that wait."""
    most: int | None = None
    """The key's limit, by its last request: settings may have changed since others began to wait. None: no limit."""
    inflight: int = 0
    """Choices in flight."""
    waiting: int = 0
    """Choices that wait."""
    finish: float = 0.0
    """The virtual time at which its last admitted request is finished."""
    meters: Meters = field(default_factory=Meters)
    """What it has spent of its rates."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """Its claims that wait, by ticket, in their order."""
    lanes: dict[str, deque[Claim]] = field(default_factory=dict)
    """Its claims that wait, by upstream, in their order."""
    full: bool = False
    """Whether the key's limit leaves room for none of its claims that wait."""

    def has_room(self, choices: int, others: int = 0) -> bool:
        """Whether the key's limit leaves room for further choices. More than the limit fit if they are alone.

        others: choices that are to come before these.
        """
        return self.most is None or self.inflight + others + choices <= max(self.most, choices)

    @property
    def backlog(self) -> float:
        """Choices that wait, divided by the weight."""
        return self.waiting / self.weight


@dataclass(slots=True, eq=False)
class Claim:
    """A request that wants permits, or has them."""

    ask: Ask
    """What it asked for."""
    choices: int
    """The number of permits."""
    account: Account
    """The account of its key."""
    goal: str
    """The upstream that it wants permits of, or has them of."""
    since: float
    """When it began to wait."""
    number: int
    """Numbers claims in the order of arrival."""
    upstream: str | None = None
    """The upstream whose permits it has; None while it waits for them."""
    charges: tuple[Charge, ...] = ()
    """What it was charged of its key's rates."""
    arrived: float = 0.0
    """The virtual time at which it came."""
    start: float = 0.0
    """Its start tag in virtual time."""

    def levels(self, now: float) -> tuple[Level, ...]:
        """Return the levels of the rates that limit it."""
        if not self.charges:
            return ()
        return levels_of(self.account.meters, [(charge.what, charge.limit) for charge in self.charges], now)
