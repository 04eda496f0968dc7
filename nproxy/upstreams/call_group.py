"""The calls that one client request makes at one upstream: what they share when replicas are chosen for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

from nproxy.upstreams.replicas import Replica

AccountKey = tuple[str | None, str]
"""What a server may limit separately: a model, and whose key calls it ("" where all calls use one key or none)."""

QueuePlace = tuple[int, int]
"""The place of a leg in an OverloadQueue: its fair-queueing turn, then its order of arrival."""


@dataclass(slots=True, eq=False)
class QueueStats:
    """What has happened to one request in an OverloadQueue."""

    places: dict[int, QueuePlace] = field(default_factory=dict)
    """By leg number."""
    waiting: int = 0
    """Legs that wait now."""
    waiting_since: float | None = None
    """When the first of the legs that wait arrived, or when a call of the request was last answered."""
    yields_until: int = 0
    """The request lets others go first until this many calls of its account have begun."""
    release_refusals: int = 0
    """How often a leg was admitted because another call ended, and was refused."""
    probe_refusals: int = 0
    """How often a leg was admitted as a probe, and was refused."""
    specific_findings: int = 0
    """How often it turned out that the request is refused while others are not."""
    specific_refusals_left: int = 0
    """This many further refusals are blamed on the request itself, not on missing capacity."""
    compared_at: int = 0
    """How many calls of the account had begun when the request was last compared with others."""


class CallGroup:
    """The calls of one request to one upstream. Mappings and methods identify a leg by its number.

    replica: where the last call went. at: where the call of a leg is, until its result is judged. uncounted: where the
    last call of a leg was, until the metrics have counted its end. failed: where a leg has failed; it avoids these
    replicas while another can take it. full: replicas that refused a leg for lack of capacity; it avoids these in the
    same way. blamed: replicas whose breakers have counted a failure of this request: once, however many legs failed
    there. praised: replicas whose breakers have counted a success of this request. queue_stats: its history in an
    OverloadQueue; None if it never waited in one. served_at: when a leg last got a whole answer.
    """

    __slots__ = (
        "__weakref__",
        "account",
        "assigned",
        "at",
        "blamed",
        "failed",
        "fallback_available",
        "full",
        "model",
        "praised",
        "prompt",
        "queue_stats",
        "replica",
        "served_at",
        "together",
        "uncounted",
    )

    def __init__(
        self,
        model: str | None = None,
        together: bool = False,
        prompt: bytes | None = None,
        assigned: Callable[[int, Replica], None] | None = None,
        account: AccountKey | None = None,
        fallback_available: bool = False,
    ) -> None:
        """model: the one they ask for, by the upstream's name; None if unknown. Not every replica may serve it.
        together: whether they should all go to one replica, so that they share its prefix cache. prompt: a hash of the
        beginning of the prompt, which selects a replica (prefix affinity); None if any will do. assigned: called with
        the leg and the replica of every call. account: the one that the server may limit; None for calls that never
        wait in an OverloadQueue. fallback_available: whether a healthy fallback upstream exists. Then a new leg is
        refused by a full upstream instead of waiting.
        """
        self.model = model
        self.together = together
        self.prompt = prompt
        self.assigned = assigned
        self.account = account
        self.fallback_available = fallback_available
        self.replica: Replica | None = None
        self.at: dict[int, Replica] = {}
        self.uncounted: dict[int, Replica] = {}
        self.failed: dict[int, set[Replica]] = {}
        self.full: dict[int, set[Replica]] = {}
        self.blamed: set[Replica] = set()
        self.praised: set[Replica] = set()
        self.queue_stats: QueueStats | None = None
        self.served_at = -inf

    def avoided(self, leg: int) -> Collection[Replica]:
        """The replicas that a leg avoids while another one can take it."""
        failed = self.failed.get(leg, ())
        return {*failed, *full} if (full := self.full.get(leg)) else failed

    def turned_away(self, leg: int, replica: Replica) -> None:
        """Note that a replica lacked capacity for a leg. That is not a failure of the replica."""
        self.failed.get(leg, set()).discard(replica)
        self.full.setdefault(leg, set()).add(replica)

    def others_in_flight(self, leg: int) -> bool:
        """Whether a call of another leg is in flight."""
        return len(self.at) > (leg in self.at)

    def common_replica(self, leg: int, now: float) -> Replica | None:
        """The replica where a leg should go to be with the request's other legs; None if it may go anywhere."""
        replica = self.replica
        if not self.together or replica is None or replica in self.avoided(leg):
            return None
        return replica if replica.admits(self, now) and not replica.flawed(now) else None
