"""Other processes of this gateway, whose calls share the room of an account: they tell each other who waits. Pure.

Each knows its own calls only. One that is busy would take back each place that it leaves, and another one would have
none for as long as that goes on; so an account's places go to its processes by turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

FRESH_SECONDS = 6.0
"""A process that waits says so again and again; one that has not for so long is gone, or waits no more."""
TELL_SECONDS = 4.0
"""How often others are told that calls are being answered."""
HANDED_SECONDS = 0.25
"""For so long a place that was left to another process is not taken back by who comes here."""

What = Literal["answers", "waits", "waits_no_more", "room"]


@dataclass(frozen=True, slots=True)
class News:
    """What one process tells the others of an account's room at an upstream.

    what: calls there are being answered; some wait here, or none any more; a call has left room, which one process is
    told of. process: the one that waits. replica: the label of the one that has room.
    """

    upstream: str
    model: str | None
    caller: str
    what: What
    process: str
    replica: str = ""


class Elsewhere:
    """The other processes where an account's calls wait, and what they are told.

    process: this one. tell: sends what is told to those that it is for, with a replica's label or "".
    """

    def __init__(self, process: str, tell: Callable[[What, str, str], None]) -> None:
        self._process = process
        self._tell = tell
        self._heard_at: dict[str, float] = {}  # of those that wait
        self._next: dict[str, int] = {}  # turns, "" is here
        self._turn = 0  # of the last one
        self._told_at = self._handed_at = -inf

    def hear(self, what: What, process: str, now: float) -> None:
        """Take that another process waits, or no more."""
        if what == "waits":
            self._heard_at[process] = now
        else:
            self._heard_at.pop(process, None)

    def waits(self, now: float) -> bool:
        """Whether another process does."""
        gone = [process for process, heard in self._heard_at.items() if now - heard > FRESH_SECONDS]
        for process in gone:
            del self._heard_at[process]
        return bool(self._heard_at)

    def is_next(self, now: float, *, calls: int) -> bool:
        """Whether who comes here now waits for others to have their turn. calls: in flight here."""
        return bool(self._heard_at) and (calls > 0 or now - self._handed_at < HANDED_SECONDS) and self.waits(now)

    def takes(self, label: str, now: float, *, waits_here: bool) -> bool:
        """Whether the room that a call leaves here, at a replica, is another process's; it is told so then."""
        if not self.waits(now):
            return False
        members = [*self._heard_at, ""] if waits_here else [*self._heard_at]
        chosen = min(members, key=self._turn_of)
        self._turn = self._turn_of(chosen)
        self._next[chosen] = self._turn + 1
        if not chosen:
            return False
        self._handed_at = now
        self._tell("room", chosen, label)
        return True

    def _turn_of(self, process: str) -> int:
        return max(self._next.get(process, 0), self._turn)

    def tell_answers(self, now: float) -> None:
        """Tell that calls are being answered, now and then."""
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._tell("answers", self._process, "")

    def tell_waiting(self, *, waits: bool) -> None:
        """Tell that some wait here, or none any more."""
        self._tell("waits" if waits else "waits_no_more", self._process, "")
