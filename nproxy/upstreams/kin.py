"""What the calls of one request share where their replicas are chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

from nproxy.upstreams.replicas import Replica

Account = tuple[str | None, str]
"""What may have a limit of its own at a server: a model, and who asks for it, "" where all use one key or none."""


@dataclass(slots=True, eq=False)
class Kin:
    """The calls of one request to one upstream.

    model: the upstream's name of the one that they ask for, None where that is not known; not every replica may serve
    it. together: they belong on one replica. prompt: a hash of what a server's prefix cache would see first, by which
    that one is chosen; None where any will do. placed: hears of every call and its replica. replica: where the last of
    them went. at: where each leg's call is that is not judged yet. uncounted: those of calls whose end is not counted
    yet. failed: the replicas that each leg has failed on, which it avoids while another one can take it; full: those
    that have no room for it, likewise. blamed, praised: the replicas whose breakers have counted a failure, or a
    success, of this request; each counts once there, however many of its legs there are. account: for what a server may
    have a limit; None for calls that no crowd is made of. places: of legs in a crowd. crowded_since: when the first of
    them came there, or something of the request was answered last. served_at: when a leg was last.
    """

    model: str | None = None
    together: bool = False
    prompt: bytes | None = None
    placed: Callable[[int, Replica], None] | None = None
    replica: Replica | None = None
    at: dict[int, Replica] = field(default_factory=dict)
    uncounted: dict[int, Replica] = field(default_factory=dict)
    failed: dict[int, set[Replica]] = field(default_factory=dict)
    full: dict[int, set[Replica]] = field(default_factory=dict)
    blamed: set[Replica] = field(default_factory=set)
    praised: set[Replica] = field(default_factory=set)
    account: Account | None = None
    places: dict[int, float] = field(default_factory=dict)
    crowded_since: float | None = None
    served_at: float = -inf

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
        return len(self.uncounted) > (leg in self.uncounted)

    def place(self, leg: int, now: float) -> Replica | None:
        """Where a leg belongs; None where that is open, or others are to be preferred to that replica."""
        replica = self.replica
        if not self.together or replica is None or replica in self.avoided(leg):
            return None
        return replica if replica.admits(self, now) and not replica.flawed(now) else None
