"""What an account tells those who may use the same capacity: whether legs wait, and that calls are being answered.

The other accounts of the upstream are told in this process (`shared_capacity.py`), the same account in the other
workers of the gateway by news (`peer_workers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nproxy.upstreams.overload.account_calls import AccountCalls
from nproxy.upstreams.overload.peer_workers import PeerWorkers, What
from nproxy.upstreams.overload.shared_capacity import SharedCapacity, WaitingAccount
from nproxy.upstreams.overload.waiting_legs import WaitingLegs

STANDS_SECONDS = 0.1
"""A call that stands for so long was probably not refused, as far as another worker needs to know."""


class Announcements:
    """workers: the other workers of this gateway, None if there are none."""

    __slots__ = ("_account", "_calls", "_clock", "_shared", "_stood", "_waiting", "workers")

    def __init__(
        self,
        account: WaitingAccount,
        waiting: WaitingLegs,
        calls: AccountCalls,
        shared: SharedCapacity,
        clock: Callable[[], float],
    ) -> None:
        self.workers: PeerWorkers | None = None
        self._account = account
        self._waiting = waiting
        self._calls = calls
        self._shared = shared
        self._clock = clock
        self._stood: set[int] = set()  # numbers of calls that were in flight at the last reminder

    def workers_go_first(self) -> bool:
        """Whether a new leg waits because legs wait in other workers."""
        return self.workers is not None and self.workers.go_first(self._clock(), calls=len(self._calls.standing))

    def waiting_changed(self) -> None:
        """Tell all that legs wait here, or that none waits any more."""
        self._note_waiting()
        if self.workers is not None:
            self.workers.tell_waiting(self._waiting.requests())

    def hear(self, what: What, process: str, requests: int) -> None:
        """Take another worker's news of the same account. requests: how many wait in that worker."""
        if self.workers is None:
            return
        begins = self.workers.hear(what, process, self._clock(), requests)
        if begins and self._calls.standing:
            loop = asyncio.get_running_loop()
            loop.call_later(STANDS_SECONDS, self._tell_of_standing_calls, self._calls.begun)
        self._note_waiting()

    def remind(self, answered_within: float) -> None:
        """Tell the other workers again that legs wait here, or that calls are in flight; forget those that are gone.

        answered_within: an answer no longer ago than so many seconds shows that those in flight are answered.
        """
        if self.workers is None:
            return
        now, standing = self._clock(), self._calls.standing
        if self._waiting:
            self.workers.tell_waiting(self._waiting.requests())
        if standing & self._stood or (standing and now - self._calls.answered_at < answered_within):
            self.workers.tell_answers(now)
        self._stood = standing.copy()
        self._note_waiting()

    def _tell_of_standing_calls(self, begun: int) -> None:
        """Tell a worker that begins to wait that calls are being answered, if one of the first `begun` still stands."""
        if self.workers is not None and any(number <= begun for number in self._calls.standing):
            self.workers.tell_answers(self._clock(), at_once=True)

    def _note_waiting(self) -> None:
        """Have slots that other accounts free offered to this one while legs wait, here or in another worker."""
        elsewhere = self.workers is not None and self.workers.waits(self._clock())
        self._shared.note_waiting(self._account, waits=bool(self._waiting) or elsewhere)
