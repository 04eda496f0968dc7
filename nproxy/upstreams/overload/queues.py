"""The overload queues of one upstream, one for each account, and what these share."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.call_group import AccountKey
from nproxy.upstreams.overload.peer_workers import PeerNews, PeerWorkers, What
from nproxy.upstreams.overload.queue import OverloadQueue
from nproxy.upstreams.overload.shared_capacity import SharedCapacity
from nproxy.upstreams.replicas import Replica

MOST_ACCOUNTS = 1024
"""From this many accounts on, those without calls and waiting legs are forgotten."""


class OverloadQueues:
    """shared: what the accounts share. draw: a random number from 0 up to 1. clock: a monotonic time in seconds.
    usable_beside: whether a healthy replica that is not among the given ones serves a model. patience: see
    OverloadQueue.
    """

    def __init__(
        self,
        draw: Draw,
        clock: Callable[[], float],
        usable_beside: Callable[[Collection[Replica], str | None], bool],
        patience: Callable[[], float],
    ) -> None:
        self.shared = SharedCapacity()
        self._draw = draw
        self._clock = clock
        self._usable_beside = usable_beside
        self._patience = patience
        self._replicas: Collection[Replica] = ()
        self._queues: dict[AccountKey, OverloadQueue] = {}
        self._workers_of: Callable[[AccountKey], PeerWorkers] | None = None

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def waiting(self) -> int:
        """Number of legs that wait."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def of(self, account: AccountKey) -> OverloadQueue:
        """The queue of an account."""
        queue = self._queues.get(account)
        if queue is None:
            if len(self._queues) >= MOST_ACCOUNTS:
                self._forget_idle()
            queue = self._queues[account] = self._new(account[0])
            if self._workers_of is not None:
                queue.announcements.workers = self._workers_of(account)
        return queue

    def _new(self, model: str | None) -> OverloadQueue:
        def other_usable(some: Collection[Replica]) -> bool:
            return self._usable_beside(some, model)

        return OverloadQueue(model, self.shared, self._draw, self._clock, other_usable, self._patience)

    def _forget_idle(self) -> None:
        for account, queue in [*self._queues.items()]:
            if not (queue.calls.standing or queue.waiting):
                queue.forgotten()
                del self._queues[account]

    def replicas_changed(self, there: Collection[Replica]) -> None:
        """There are other replicas than before."""
        self._replicas = there
        for queue in self._queues.values():
            queue.replicas_changed(there)
        self.shared.keep(there)

    def capacity_may_have_grown(self) -> None:
        """Let legs that wait find out how much a replica offers that has come, or has come back."""
        for queue in self._queues.values():
            if queue.waiting:
                queue.capacity_may_have_grown()

    def share_room(self, upstream: str, process: str, tell: Callable[[PeerNews], None]) -> None:
        """Share capacity with other processes of this gateway.

        process: their name of this one. tell: sends them news.
        """

        def workers_of(account: AccountKey) -> PeerWorkers:
            def send(what: What, worker: str, label: str, requests: int) -> None:
                tell(PeerNews(upstream, *account, what, worker, label, requests))

            return PeerWorkers(process, send)

        self._workers_of = workers_of
        for account, queue in self._queues.items():
            queue.announcements.workers = workers_of(account)

    def take_news(self, news: PeerNews) -> None:
        """Take news from another process."""
        replica = next((one for one in self._replicas if one.label == news.replica), None)
        self.of((news.model, news.caller)).hear(news.what, news.process, replica, news.requests)

    def remind(self) -> None:
        """Tell other processes again whether legs wait here; to be called from time to time."""
        for queue in self._queues.values():
            queue.remind()
