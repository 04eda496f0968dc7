"""What the ledger keeps of a key, and of a request of that key."""

from __future__ import annotations

from dataclasses import dataclass, field

from nproxy.gateway.admission.messages import Ask
from nproxy.gateway.admission.rates import Charge, Meters


@dataclass(slots=True, eq=False)
class Account:
    """What is counted for one key. waiting, inflight: choices. finish: virtual time. claims: that wait, in order."""

    weight: float = 1.0
    inflight: int = 0
    waiting: int = 0
    finish: float = 0.0
    meters: Meters = field(default_factory=Meters)
    claims: dict[str, Claim] = field(default_factory=dict)

    @property
    def backlog(self) -> float:
        """Choices that wait, for a key of weight 1."""
        return self.waiting / self.weight


@dataclass(slots=True, eq=False)
class Claim:
    """A request that wants permits, or has them.

    choices: how many. goal: the upstream that it is for. upstream: where it has permits, None while it waits for some.
    since: when it began to wait. number: in the order of coming. charges: of its key's rates. arrived, start: virtual
    time.
    """

    ask: Ask
    choices: int
    account: Account
    goal: str
    since: float
    number: int
    upstream: str | None = None
    charges: tuple[Charge, ...] = ()
    arrived: float = 0.0
    start: float = 0.0
