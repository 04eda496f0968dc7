"""Leg-0-first: if an upstream caches prompts, one leg computes the prompt, and its siblings start after that."""

from __future__ import annotations

from collections.abc import Sequence

from nproxy.choices.leg import Leg

WARM_SECONDS = 10.0
"""How long siblings wait for the first leg, at most."""


def held_back(legs: Sequence[Leg]) -> dict[int, list[int]]:
    """Return which legs must not be called yet, by the leg of their prompt that warms the cache. All by number."""
    if not legs[0].warms:  # then none does
        return {}
    warming = {leg.prompt: leg.number for leg in legs if leg.warms}
    held: dict[int, list[int]] = {number: [] for number in warming.values()}
    for leg in legs:
        if not leg.warms:
            held[warming[leg.prompt]].append(leg.number)
    return held
