"""What a refusal means: want of room, another fault of the server's, or what that request itself asks for. Pure.

A 503 may have any cause, and a 429 be about the tokens that one request wants, which no other one does. Taken for want
of room, those would hold up everybody. What tells them apart is what becomes of others.
"""

from __future__ import annotations

from math import inf

from nproxy.upstreams.lateness import LATE_SECONDS
from nproxy.upstreams.visit import Visit

TWICE = 2
"""One may have bad luck. Who was let in and turned away so often before, while others were not, is turned away again
for what it asks for."""
MOST_PASSES = 3
"""So many others go before a request that was let in and turned away again."""
OFTEN = 16
"""Who was turned away so often for what it asks for is told."""


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

    def note_refused(self, visit: Visit, begun: int, *, sure: bool) -> bool:
        """A call was turned away: True where that may be for something else than want of room.

        begun: calls of the account so far. sure: it says that it is for want of room.
        """
        self.in_a_row += 1
        self.several = self.several or self._who not in (None, visit.kin)
        self._who = visit.kin
        return self._is_its_own(visit, begun) or (self.in_a_row == 1 and not sure)

    def _is_its_own(self, visit: Visit, begun: int) -> bool:
        """Whether a request is turned away again and again where others are not.

        Only those tell that which came as soon behind an end as it did, or like it without one.
        """
        fares = visit.kin.crowded
        if not visit.why or fares is None or visit.kin.served_at > -inf:
            return False
        often = (fares.tried if visit.why == "try" else fares.again) >= TWICE
        others = fares.own > 0 or (often and max(self._newest[: visit.soonness + 1]) > fares.refused)
        own = others and not self.several
        fares.refused = fares.refused or begun
        fares.own += own
        fares.tried += visit.why == "try"
        fares.again += visit.why == "end"
        fares.after = begun + min(fares.again - 1, MOST_PASSES)
        return own
