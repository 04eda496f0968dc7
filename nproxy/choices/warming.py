"""Leg-0-first: where an upstream caches prompts, one leg computes the prompt, and its siblings start when it has."""

from __future__ import annotations

from collections.abc import Iterable

from nproxy.choices.leg import Leg

WARM_SECONDS = 10.0
"""How long siblings wait for the first leg at most."""


class Warming:
    """Which legs are held back, and for which one: the leg of their prompt that warms the cache.

    held: numbers of the legs that are not to be called yet.
    """

    def __init__(self, legs: Iterable[Leg]) -> None:
        legs = list(legs)
        warm = {leg.prompt: leg.number for leg in legs if leg.warms}
        self._waiting: dict[int, list[int]] = {}
        for leg in legs:
            first = warm.get(leg.prompt, leg.number)
            if first != leg.number:
                self._waiting.setdefault(first, []).append(leg.number)
        self.held = frozenset(number for waiting in self._waiting.values() for number in waiting)

    def waits_for(self, number: int) -> bool:
        """Whether any leg waits for this one."""
        return number in self._waiting

    def release(self, number: int) -> list[int]:
        """Give the legs that waited for this one, which spoke, ended or failed; each is given once."""
        return self._waiting.pop(number, [])

    def release_all(self) -> list[int]:
        """Give all legs that still wait: they have waited long enough."""
        released = [number for waiting in self._waiting.values() for number in waiting]
        self._waiting.clear()
        return released
