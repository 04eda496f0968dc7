"""Leg-0-first: if an upstream caches prompts, one leg computes the prompt, and its siblings start after that."""

from __future__ import annotations

from collections.abc import Sequence

from nproxy.choices.leg import Leg

WARM_SECONDS = 10.0
"""How long siblings wait for the first leg, at most."""


class Warming:
    """Which legs are held back, and for which one: the leg of their prompt that warms the cache.

    held: numbers of the legs that must not be called yet. waiting: those that still wait, by the leg they wait for.
    """

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.waiting: dict[int, list[int]] = {}
        self.held: frozenset[int] = frozenset()
        warm = {}
        for leg in legs:
            if leg.warms:
                warm[leg.prompt] = leg.number
        if not warm:
            return
        for leg in legs:
            first = warm.get(leg.prompt, leg.number)
            if first != leg.number:
                self.waiting.setdefault(first, []).append(leg.number)
        self.held = frozenset(number for waiting in self.waiting.values() for number in waiting)

    def release(self, number: int) -> list[int]:
        """Return the legs that waited for this one, which spoke, ended or failed. Each is returned once."""
        return self.waiting.pop(number, [])

    def release_all(self) -> list[int]:
        """Return all legs that still wait: they have waited long enough."""
        released = [number for waiting in self.waiting.values() for number in waiting]
        self.waiting.clear()
        return released
