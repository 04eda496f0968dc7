"""What the calls of one request share where their replicas are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

from nproxy.upstreams.replicas import Replica

Account = tuple[str | None, str]
"""What may have a limit of its own at a server: a model, and who asks for it, "" where all use one key or none."""

Place = tuple[int, int]
"""Where a leg stands among those that wait in a crowd: its turn, and which of those that came it was."""


@dataclass(slots=True, eq=False)
class Crowded:
    """How a request fares in a crowd."""

    places: dict[int, Place] = field(default_factory=dict)
    """Of a leg."""
    waiting: int = 0
    """Legs that wait."""
    since: float | None = None
    """When the first of those that wait came, or something of the request was answered last."""
    after: int = 0
    """They let others go before them until so many calls of their account have begun."""
    again: int = 0
    """How often a leg was let in behind an end, and turned away."""
    tried: int = 0
    """How often one was let in to find out, and turned away."""
    own: int = 0
    """How often it showed that others are not."""
    taken_for_own: int = 0
    """So many further refusals are for what it asks for."""
    compared: int = 0
    """How many calls of the account had begun when it was last compared with others."""


@dataclass(slots=True, eq=False)
class Kin:
    """The calls of one request to one upstream. "Of a leg" is by its number."""

    model: str | None = None
    """That they ask for, by the upstream's name of it, None where that is not known; not every replica may serve it."""
    together: bool = False
    """They belong on one replica."""
    prompt: bytes | None = None
    """A hash of what a server's prefix cache would see first, by which that one is chosen; None where any will do."""
    placed: Callable[[int, Replica], None] | None = None
    """Hears of every call and its replica."""
    account: Account | None = None
    """For what a server may have a limit; None for calls that no crowd is made of."""
    spare: bool = False
    """There is another upstream, in order, so who comes to a full one is told rather than to wait."""

    replica: Replica | None = None
    """Where the last of them went."""
    at: dict[int, Replica] = field(default_factory=dict)
    """Where the call of a leg is, until it is judged."""
    uncounted: dict[int, Replica] = field(default_factory=dict)
    """Where the last call of a leg was, until the metrics count its end."""
    failed: dict[int, set[Replica]] = field(default_factory=dict)
    """Where a leg has failed: it avoids them while another one can take it."""
    full: dict[int, set[Replica]] = field(default_factory=dict)
    """Those that have no room for a leg, likewise."""
    blamed: set[Replica] = field(default_factory=set)
    """Whose breakers have counted a failure of this request: once, however many of its legs failed there."""
    praised: set[Replica] = field(default_factory=set)
    """Whose breakers have counted a success."""
    crowded: Crowded | None = None
    """How it fares in a crowd; None where it never waited in one."""
    served_at: float = -inf
    """When a leg was served last."""

    def avoided(self, leg: int) -> Collection[Replica]:
        """What a leg avoids while another replica can take it."""
        failed = self.failed.get(leg, ())
        return {*failed, *full} if (full := self.full.get(leg)) else failed

    def turned_away(self, leg: int, replica: Replica) -> None:
        """Note that a replica had no room for a leg, which is no failure that it would show again."""
        self.failed.get(leg, set()).discard(replica)
        self.full.setdefault(leg, set()).add(replica)

    def beside(self, leg: int) -> bool:
        """Whether another leg is being called."""
        return len(self.at) > (leg in self.at)

    def place(self, leg: int, now: float) -> Replica | None:
        """Where a leg belongs; None where that is open, or others are to be preferred to that replica."""
        replica = self.replica
        if not self.together or replica is None or replica in self.avoided(leg):
            return None
        return replica if replica.admits(self, now) and not replica.flawed(now) else None
