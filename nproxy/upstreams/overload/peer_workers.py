"""Other workers of this gateway whose calls share an account's capacity: they tell each other who waits. Pure.

Each worker knows its own calls only. A busy one would take back every slot it frees, and another would get none for as
long; so the freed slots of an account go to its workers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

NEWS_SECONDS = 6.0
"""A waiting worker repeats that it waits; one that has not for so long is gone, or waits no more."""
TELL_SECONDS = 4.0
"""How often the others are told that calls are being answered."""
HANDED_SECONDS = 0.25
"""For so long, a slot that was handed to another worker is not taken by a new leg here."""

What = Literal["answers", "waits", "waits_no_more", "room"]


@dataclass(frozen=True, slots=True)
class PeerNews:
    """What one worker tells the others about an account at an upstream.

    what: `answers`: calls are in flight in this worker, or were answered; `waits`, `waits_no_more`: whether legs wait
    in it; `room`: a call has freed a slot, told only to the worker that gets it. process: the worker that this is
    about, or that gets the slot. replica: the label of the replica with the slot. requests: how many wait.
    """

    upstream: str
    model: str | None
    caller: str
    what: What
    process: str
    replica: str = ""
    requests: int = 1


class PeerWorkers:
    """The other workers with waiting legs of one account.

    Slots go to the workers by start-time fair queueing (Goyal, Vin and Cheng, 1996), weighted by how many requests wait
    in each. process: the name of this one. tell: sends news: what, the worker that waits or is told, a replica's label
    or "", how many requests wait. answers_at: when another worker last told that calls are being answered.
    """

    def __init__(self, process: str, tell: Callable[[What, str, str, int], None]) -> None:
        self.answers_at = -inf
        self._process = process
        self._tell = tell
        self._waiting: dict[str, tuple[float, int]] = {}  # by worker, when it was heard last, and how many requests
        self._next: dict[str, float] = {}  # turns by worker; "" is this one
        self._turn = 0.0  # of the last slot
        self._told_at = self._handed_at = -inf

    def hear(self, what: What, process: str, now: float, requests: int = 1) -> bool:
        """Take the news of another worker; returns whether it has begun to wait."""
        if what == "answers":
            self.answers_at = now
        elif what == "waits":
            begins = process not in self._waiting
            self._waiting[process] = now, requests
            return begins
        elif what == "waits_no_more":
            self._waiting.pop(process, None)
        return False

    def active(self, now: float) -> bool:
        """Whether another worker has calls in flight, or waiting legs, as far as is known."""
        return now - self.answers_at < NEWS_SECONDS or self.waits(now)

    def waits(self, now: float) -> bool:
        """Whether another worker has waiting legs."""
        gone = [process for process, (heard, _) in self._waiting.items() if now - heard > NEWS_SECONDS]
        for process in gone:
            del self._waiting[process]
        return bool(self._waiting)

    def go_first(self, now: float, *, calls: int) -> bool:
        """Whether a new leg here lets the other workers go first. calls: in flight here."""
        return bool(self._waiting) and (calls > 0 or now - self._handed_at < HANDED_SECONDS) and self.waits(now)

    def give_away(self, label: str, now: float, *, requests: int) -> bool:
        """Whether a slot that was freed here, at the replica `label`, goes to another worker, which is told so.

        requests: how many wait here.
        """
        if not self.waits(now):
            return False
        weights = {process: waiting for process, (_, waiting) in self._waiting.items()}
        if requests:
            weights[""] = requests
        chosen = min(weights, key=self._turn_of)
        self._turn = self._turn_of(chosen)
        self._next = {process: turn for process, turn in self._next.items() if turn > self._turn}
        self._next[chosen] = self._turn + 1 / weights[chosen]
        if not chosen:
            return False
        self._handed_at = now
        self._tell("room", chosen, label, requests)
        return True

    def _turn_of(self, process: str) -> float:
        return max(self._next.get(process, 0), self._turn)

    def tell_answers(self, now: float, *, at_once: bool = False) -> None:
        """Tell the others that calls are being answered; not more often than TELL_SECONDS says, unless `at_once`."""
        if at_once or now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._tell("answers", self._process, "", 0)

    def tell_waiting(self, requests: int) -> None:
        """Tell the others how many requests wait here."""
        self._tell("waits" if requests else "waits_no_more", self._process, "", requests)
