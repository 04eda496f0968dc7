"""One attempt to call a replica with a leg: why it was admitted, and how it ended."""

from __future__ import annotations

from math import inf
from typing import Literal

from nproxy.choices.events import Room
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.overload.release_delay import LONGEST_DELAY, FreedSlot

End = Literal["", "whole", "error", "broken"]
"""How an attempt ended that was not refused: "" if it was cancelled. A broken one says nothing about capacity."""
AdmittedBy = Literal["", "release", "probe"]
"""Why a leg calls now: it did not have to wait; another call ended; to find out whether there is more capacity."""


class CallAttempt:
    """A leg that calls a replica, or is about to.

    choices: how many it asks for. alone: no other call may use the replica meanwhile. slot: the freed slot it was
    admitted for, if any. number: its place among the calls of its account. began: when it was admitted. room: set when
    it was refused; where there may be capacity for it. not_capacity: it was refused, and perhaps for another reason
    than missing capacity. request_specific: it was refused for what its request asks for.
    """

    __slots__ = (
        "admitted_by",
        "alone",
        "began",
        "choices",
        "end",
        "group",
        "leg",
        "not_capacity",
        "number",
        "request_specific",
        "room",
        "slot",
    )

    def __init__(self, group: CallGroup, leg: int, choices: int = 1, alone: bool = False) -> None:
        self.group = group
        self.leg = leg
        self.choices = choices
        self.alone = alone
        self.admitted_by: AdmittedBy = ""
        self.slot: FreedSlot | None = None
        self.number = 0
        self.began = -inf
        self.end: End = ""
        self.room: Room | None = None
        self.not_capacity = False
        self.request_specific = False

    @property
    def has_failed(self) -> bool:
        """Whether there are replicas that the leg avoids, because it failed or was refused there."""
        return bool(self.group.avoided(self.leg))

    @property
    def delay_rank(self) -> int:
        """How long after a release it called: 0 without one (direct or probe), else 1 + its index in RELEASE_DELAYS."""
        return 0 if self.slot is None else self.slot.delay + 1

    @property
    def waited_longest(self) -> bool:
        """Whether it called as long after a release as any attempt does."""
        return self.slot is not None and self.slot.delay == LONGEST_DELAY
