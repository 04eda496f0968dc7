"""How many calls the upstream takes at once, as far as one request shows it."""

from __future__ import annotations

from nproxy.choices.capability import Capability
from nproxy.choices.roster import Roster, Run
from nproxy.choices.states import LegState


class Crowding:
    """Watches calls that are turned away for want of room beside their siblings.

    seen: some call was. ended_well: legs that did, each of which gives room back.
    """

    def __init__(self, capability: Capability, roster: Roster) -> None:
        self.seen = False
        self.ended_well = 0
        self._parallel = capability.parallel
        self._roster = roster
        self._knocking: set[int] = set()

    @property
    def parallel(self) -> int | None:
        """How many calls may be open at once, as the upstream says and as it refused more; None for any number.

        For one that will knock once more in a moment, no other one knocks.
        """
        if self._parallel is None or not self._knocking:
            return self._parallel
        return self._parallel - self._knocks

    def refused(self, run: Run, beside: int) -> bool | None:
        """Take a refusal; gives whether the leg knocks once more in a moment. None: there is nobody to wait for.

        It does where a sibling has ended since its last refusal, as a server may give room back some time behind an
        answer; else it waits for such an end, and fewer calls are made at once. beside: siblings that hold a call.
        """
        knocks = self.ended_well > run.ended_before
        if not (beside or knocks):
            return None
        if not (knocks and self.seen) or self._knocks:
            self._parallel = max(1, beside)
        if knocks:
            self._knocking.add(run.leg.number)
        self.seen, run.ended_before = True, self.ended_well
        return knocks

    @property
    def _knocks(self) -> int:
        """How many legs will knock once more in a moment."""
        return sum(self._roster.find(leg).state is LegState.PAUSED for leg in self._knocking)
