"""A leg's visit to a replica: why it goes there now, and how it ends."""

from __future__ import annotations

from math import inf
from typing import Literal

from nproxy.choices.events import Room
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.lateness import Opening

End = Literal["", "whole", "error", "broken"]
"""How a call ended that was not turned away: "" where it was given up. A broken one says nothing of room."""
LetIn = Literal["", "end", "try"]
"""Why a call is made now: it did not wait; another one has ended; to find out whether there is more room."""


class Visit:
    """A leg on its way to a replica, and there."""

    __slots__ = ("began", "end", "kin", "leg", "number", "odd", "opening", "own", "room", "why")

    def __init__(self, kin: Kin, leg: int) -> None:
        self.kin = kin
        self.leg = leg
        self.why: LetIn = ""
        self.opening: Opening | None = None  # that it was let in for
        self.number = 0  # among the calls of its account
        self.began = -inf  # when it was let in
        self.end: End = ""
        self.room: Room | None = None  # where there may be some for it, once it was turned away
        self.odd = False  # it was turned away, and not for want of room, maybe
        self.own = False  # but for what its request asks for

    @property
    def soonness(self) -> int:
        """How soon it came, 0 the soonest: by itself or to find out, or so late behind an end."""
        return 0 if self.opening is None else self.opening.late + 1
