"""When a request that is passed through is sent again, at the same upstream."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind
from nproxy.choices.failure_table import Follows, follows
from nproxy.choices.retry import untried
from nproxy.upstreams.upstream import Upstream


class Retries:
    """Decides on retries at one upstream while the body can still be sent again.

    One retry is free, if a kept-alive connection was closed without an answer, and so are retries at replicas not tried
    yet if the last one refused the connection. The others take from the retry budget, and need a failure after which
    the request cannot have been processed: no connection was made, or the replica was found down.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._budget = upstream.budget
        self._per_leg = self._left = upstream.settings.retries.per_leg
        self._free = True

    def another(self, failure: Failure) -> bool:
        """Whether to try again after this failure; takes the retry from those that are left."""
        if failure.kind is FailureKind.STALE and self._free:
            self._free = False
            return True
        if untried(failure) and self._per_leg:
            return True
        if not follows(failure, Follows.UNSERVED) or not self._left or not self._budget.take():
            return False
        self._left -= 1
        return True
