"""Other processes of this gateway, whose calls share the room of an upstream: they tell each other who waits.

Each knows its own calls only. One that is busy would take back each place that it leaves, as among the accounts of one
process (`commons.py`), so the others are among those that take turns there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from nproxy.upstreams.gate import Gate
from nproxy.upstreams.lateness import Opening

FRESH_SECONDS = 6.0
"""A process that waits says so again and again; one that has not for so long is gone, or waits no more."""

What = Literal["answers", "waits", "waits_no_more", "room"]


@dataclass(frozen=True, slots=True)
class News:
    """What one process tells the others of an upstream's room.

    what: calls there are being answered; some wait here, or none any more; a call has left room, which one process is
    told of. process: the one that waits. replica: the label of the one that has room.
    """

    upstream: str
    what: What
    process: str
    replica: str = ""


class Elsewhere:
    """What is known of the other processes at one upstream, and what they are told.

    process: this one. tell: sends news to those that they are for.
    """

    def __init__(self, gate: Gate, upstream: str, process: str, tell: Callable[[News], None]) -> None:
        self._gate = gate
        self._commons = gate.commons
        self._upstream = upstream
        self._process = process
        self._tell = tell
        self._others: dict[str, _Other] = {}
        self._commons.others = self

    def hear(self, news: News) -> None:
        """Take what another process told."""
        now = self._gate.clock()
        match news.what:
            case "answers":
                self._commons.answered_at = max(self._commons.answered_at, now)
            case "waits":
                other = self._others.setdefault(news.process, _Other(self, news.process))
                other.heard_at = now
                self._commons.note_waiting(other, waits=True, here=False)
            case "waits_no_more":
                if (known := self._others.get(news.process)) is not None:  # it keeps its turn, for when it waits again
                    self._commons.note_waiting(known, waits=False, here=False)
            case "room":
                self._has_room(news.replica)

    def _has_room(self, label: str) -> None:
        for replica in self._gate.replicas:
            if replica.label == label:
                lateness = self._commons.lateness(replica)
                self.comes(Opening(self, replica, lateness, lateness.late, 0, 0))

    def comes(self, opening: Opening) -> None:
        """Let the next one in; it is as late already as the other process has it."""
        self._commons.invite(opening)

    def taken(self, opening: Opening, *, guest: bool) -> bool:
        """Who is turned away has not found it: nothing is known here of who else came."""
        return True

    def tell_answers(self) -> None:
        """Tell that calls are being answered."""
        self._tell(News(self._upstream, "answers", self._process))

    def tell_waiting(self, *, waits: bool) -> None:
        """Tell that some wait here, or none any more."""
        self._tell(News(self._upstream, "waits" if waits else "waits_no_more", self._process))

    def remind(self) -> None:
        """Tell again that some wait here; from time to time."""
        if self._commons.waiting_here:
            self.tell_waiting(waits=True)

    def hand_over(self, other: _Other, opening: Opening) -> bool:
        """Let another process have the room that a call left here; False where it waits no more, or told of it."""
        if self._gate.clock() - other.heard_at > FRESH_SECONDS:
            self._others.pop(other.process, None)
            self._commons.note_waiting(other, waits=False, here=False)
            return False
        if opening.host is self:
            return False
        self._tell(News(self._upstream, "room", other.process, opening.replica.label))
        return True


class _Other:
    """A process that waits."""

    __slots__ = ("_elsewhere", "heard_at", "next_turn", "process")

    def __init__(self, elsewhere: Elsewhere, process: str) -> None:
        self._elsewhere = elsewhere
        self.process = process
        self.heard_at = -inf
        self.next_turn = 0

    def invited(self, opening: Opening) -> bool:
        """See Member."""
        return self._elsewhere.hand_over(self, opening)

    def left_alone(self) -> None:
        """It finds out by itself."""
