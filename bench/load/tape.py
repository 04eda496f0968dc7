"""What clients measure, kept in a few numbers however long a run is."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from bench.load.ask import Outcome

_BOUNDS = [0.0001 * 1.05**number for number in range(320)]
"""Upper bounds of a histogram's buckets, in seconds."""


class Histogram:
    """A histogram of seconds, with buckets that grow by 5 %, from a tenth of a millisecond on."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one value."""
        self._classes[min(bisect_left(_BOUNDS, seconds), len(_BOUNDS) - 1)] += 1

    def milliseconds(self, share: float) -> float | None:
        """Return the time in milliseconds that this share of the values did not exceed; None if there are none."""
        total = self._classes.total()
        seen = 0
        for number in sorted(self._classes):
            seen += self._classes[number]
            if seen >= share * total:
                return round(1000 * _BOUNDS[number], 2)
        return None


class Tape:
    """Collects the measurements of all clients of a bar. characters: of text that was read and correct."""

    def __init__(self) -> None:
        self.characters = 0
        self.outcomes: Counter[str] = Counter()
        self.details: Counter[str] = Counter()
        self._gaps = Histogram()
        self._first = Histogram()
        self._answer: dict[str, Histogram] = {}

    def gap(self, seconds: float) -> None:
        """Note the time between two moments at which text of one answer came."""
        self._gaps.add(seconds)

    def count(self, outcome: Outcome) -> None:
        """Note that an answer has ended."""
        self.outcomes[outcome.kind] += 1
        if outcome.kind not in ("ok", "left"):
            self.details[f"{outcome.kind} {outcome.status}: {outcome.detail[:120]}"] += 1
        if outcome.first is not None:
            self._first.add(outcome.first)
        self._answer.setdefault(outcome.kind, Histogram()).add(outcome.seconds)

    def answered_in(self, kind: str) -> dict[str, float | None]:
        """Return milliseconds to the end of answers of this kind."""
        histogram = self._answer.get(kind, Histogram())
        return {"p50": histogram.milliseconds(0.5), "p99": histogram.milliseconds(0.99)}

    def times(self) -> dict[str, Any]:
        """Return milliseconds to the first text, and between two texts of one answer."""
        return {
            "first_text_ms": {"p50": self._first.milliseconds(0.5), "p99": self._first.milliseconds(0.99)},
            "between_texts_ms": {"p50": self._gaps.milliseconds(0.5), "p99": self._gaps.milliseconds(0.99)},
        }
