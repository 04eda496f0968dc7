"""What a refusal means: want of room, another fault of the server's, or what that request itself asks for. Pure.

A 503 may have any cause, and a 429 be about the tokens that one request wants, which no other one does. Taken for want
of room, those would hold up everybody. What tells them apart is what becomes of others.
"""

from __future__ import annotations

from math import inf

from nproxy.upstreams.lateness import LATE_SECONDS
from nproxy.upstreams.visit import Visit

TWICE = 2
"""One may have bad luck. Who was let in and turned away so often before may be turned away for what it asks for."""
STICKS = 8
"""So many further refusals are taken for the same, until it shows anew that others are not turned away."""
AT_ONCE = 3
"""So many of those that are turned away for what they ask for make way for another one at the same end."""
MOST_PASSES, MOST_PASSES_OF_ITS_OWN = 3, 64
"""So many others go before a request that was let in and turned away again; before one that asks for too much."""
OFTEN = 10
"""Who has shown so often that it is turned away where others are not is told."""


class Refusals:
    """Those of one account, and the answers that tell what they mean.

    in_a_row: since a call ended that was not refused. several: these were of several requests.
    """

    __slots__ = ("_newest", "_who", "in_a_row", "several")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.several = False
        self._who: object = None  # the last one of them was of
        self._newest = [0] * (len(LATE_SECONDS) + 1)  # the last call that was answered, by how soon it came

    def note_end(self) -> None:
        """A call is over that was not refused."""
        self.in_a_row, self._who, self.several = 0, None, False

    def note_answer(self, visit: Visit) -> None:
        """It had an answer, be it an error."""
        soon = visit.soonness
        self._newest[soon] = max(self._newest[soon], visit.number)

    def note_refused(self, visit: Visit, begun: int) -> bool:
        """A call was turned away: True where that is for what its request asks for.

        begun: calls of the account so far.
        """
        self.in_a_row += 1
        self.several = self.several or self._who not in (None, visit.kin)
        self._who = visit.kin
        return self._compare(visit, begun)

    def _compare(self, visit: Visit, begun: int) -> bool:
        """Whether a request is turned away again and again where others are not, and nothing of it is answered.

        Only those tell that which came as soon behind an end as it did, or like it without one, and since it was last
        compared with others.
        """
        kin, fares = visit.kin, visit.kin.crowded
        if not visit.why or fares is None or kin.served_at > -inf or kin.beside(visit.leg):
            return False
        fares.tried += visit.why == "try"
        fares.again += visit.why == "end"
        often = (fares.tried if visit.why == "try" else fares.again) > TWICE
        if often and max(self._newest[: visit.soonness + 1]) > fares.compared:
            fares.own += 1
            fares.taken_for_own = STICKS
            fares.compared = begun
        fares.compared = fares.compared or begun
        own = fares.taken_for_own > 0 and self.in_a_row <= AT_ONCE
        fares.taken_for_own = max(fares.taken_for_own - 1, 0)
        passes = min(2**fares.own, MOST_PASSES_OF_ITS_OWN) if fares.own else min(fares.again - 1, MOST_PASSES)
        fares.after = begun + passes
        return own
