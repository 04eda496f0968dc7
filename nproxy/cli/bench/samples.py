"""Measured times, and their percentiles: exact up to a number of values, and with a bounded error beyond."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable

BOUND = 1_000_000
"""Maximum number of values that are kept as they are: 8 MB."""
ACCURACY = 0.005
"""Relative error of a percentile beyond that number."""

_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_SMALLEST = 1e-9
"""Seconds; smaller times are counted as this: the clocks used have no finer resolution."""


class Samples:
    """A growing collection of times in seconds, none of them negative.

    Beyond `bound` values they are counted in buckets whose bounds grow by a constant factor, so that every percentile
    is within ACCURACY of the true one (DDSketch: Masson, Rim, Lee, VLDB 2019). Number, sum and maximum stay exact.
    """

    __slots__ = ("_bound", "_classes", "_kept", "_sorted", "largest", "total")

    def __init__(self, bound: int = BOUND) -> None:
        self._bound = bound
        self._kept: array[float] = array("d")
        self._sorted = True
        self._classes: Counter[int] | None = None
        self.total = 0.0
        self.largest = 0.0

    def __len__(self) -> int:
        return len(self._kept) if self._classes is None else self._classes.total()

    @property
    def exact(self) -> bool:
        """Whether percentiles are measured values."""
        return self._classes is None

    @property
    def mean(self) -> float:
        """The arithmetic mean; 0 if there are no values."""
        return self.total / len(self) if len(self) else 0.0

    def extend(self, values: Iterable[float]) -> None:
        """Add values."""
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Add one value."""
        self.total += value
        self.largest = max(self.largest, value)
        if self._classes is not None:
            self._classes[_class_of(value)] += 1
            return
        self._kept.append(value)
        self._sorted = False
        if len(self._kept) > self._bound:
            self._classes = Counter(map(_class_of, self._kept))
            self._kept = array("d")

    def percentile(self, share: float) -> float:
        """Return the smallest value that this share of all does not exceed (nearest rank).

        It is a measured value while `exact`. share: above 0, up to 1. Raises ValueError if there is no value.
        """
        if not len(self):
            raise ValueError("no value, no percentile")
        rank = max(1, math.ceil(share * len(self)))
        if self._classes is None:
            if not self._sorted:
                self._kept = array("d", sorted(self._kept))
                self._sorted = True
            return self._kept[rank - 1]
        seen = 0
        for number in sorted(self._classes):
            seen += self._classes[number]
            if seen >= rank:
                return min(_value_of(number), self.largest)
        raise AssertionError("a rank is at most the number of values")


def _class_of(value: float) -> int:
    return math.ceil(math.log(max(value, _SMALLEST)) / math.log(_GAMMA))


def _value_of(number: int) -> float:
    """Return the value in a bucket that has the same relative distance to both of its bounds."""
    return 2 * _GAMMA**number / (_GAMMA + 1)
