"""What is known of the replicas that turned calls of an account away for want of room. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS
from nproxy.upstreams.permits import ROUNDING
from nproxy.upstreams.replicas import Replica


@dataclass(slots=True, eq=False)
class Full:
    """One of them.

    at: when it turned somebody away last. no_try_before: as it wishes. not_before: likewise, and an end makes no
    difference. In seconds of the crowd's clock.
    """

    at: float = 0.0
    no_try_before: float = 0.0
    not_before: float = 0.0


class FullReplicas(Collection[Replica]):
    """Those of one account.

    beside: whether there is a replica in order beside some.
    """

    def __init__(self, beside: Callable[[Collection[Replica]], bool]) -> None:
        self._beside = beside
        self._full: dict[Replica, Full] = {}

    def __contains__(self, replica: object) -> bool:
        return replica in self._full

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._full)

    def __len__(self) -> int:
        return len(self._full)

    def but(self, replica: Replica | None) -> set[Replica]:
        """All of them but one."""
        return self._full.keys() - {replica}

    def keep(self, there: Collection[Replica]) -> None:
        """Forget those that are no longer there."""
        self._full = {replica: full for replica, full in self._full.items() if replica in there}

    def forget(self, now: float) -> None:
        """They may have room again, but for those that wish to be left alone still."""
        self._full = {replica: full for replica, full in self._full.items() if now < full.no_try_before}

    def note_full(self, replica: Replica, now: float, wait: float | None) -> Full:
        """One is full. wait: seconds for which it wishes that nobody comes to find out whether it still is."""
        full = Full() if replica.draining else self._full.setdefault(replica, Full())  # who leaves is not asked again
        full.at = now
        if wait is not None:
            full.no_try_before = max(full.no_try_before, now + wait)
        return full

    def note_refused(self, replica: Replica, now: float) -> None:
        """One turned somebody away, for want of room or not."""
        if replica in self._full:
            self._full[replica].at = now

    @property
    def all_there_are(self) -> bool:
        """Whether no replica in order is known to have room."""
        return not self._beside(self._full)

    def may_be_entered(self, replica: Replica | None, now: float) -> bool:
        """Whether one may come now as a call ends there. replica: None where it may end anywhere."""
        if replica is not None:
            return replica not in self._full or now >= self._full[replica].not_before
        return not self.all_there_are or min((full.not_before for full in self._full.values()), default=0.0) <= now

    def another_before_long(self, replica: Replica, now: float) -> bool:
        """Whether another replica is in order, or is full and may be asked again before long."""
        others = (full for one, full in self._full.items() if one is not replica)
        latest = now + LONGEST_RETRY_AFTER_SECONDS
        return self._beside({replica}) or any(full.no_try_before <= latest for full in others)

    def next_asked(self, now: float) -> Replica | None:
        """The one that is asked again next, as it has not been for the longest time; None where others have room."""
        if not self.all_there_are:
            return None
        may = [replica for replica, full in self._full.items() if now >= full.no_try_before - ROUNDING]
        return min(may or self._full, key=lambda replica: self._full[replica].at, default=None)

    @property
    def no_try_before(self) -> float:
        """When one may find out, as those wish that it could ask; 0 where that is now."""
        if not self.all_there_are:
            return 0.0
        return min((full.no_try_before for full in self._full.values()), default=0.0)
