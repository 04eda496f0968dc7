"""What the bodies of many calls take."""

from __future__ import annotations

from collections.abc import Iterable

from nproxy.openai.body import Spliced


def held(calls: Iterable[Spliced]) -> int:
    """The bytes that are held for all calls together: each part once, however many share it."""
    return sum(map(len, {id(part): part for call in calls for part in call.parts}.values()))
