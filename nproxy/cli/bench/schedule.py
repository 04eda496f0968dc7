"""When requests are sent: a number at once (closed loop), or at times that do not depend on answers (open loop)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile


@dataclass(frozen=True, slots=True)
class Closed:
    """A constant number of requests is in flight: one is sent when another has ended."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Open:
    """Requests are due at random times, drawn beforehand, with this rate per second, however long answers take.

    burstiness: the shape of the gamma distribution of the times between them, as in `vllm bench serve`. 1 is a Poisson
    process; below it requests come in bursts, above it evenly.
    """

    rate: float
    burstiness: float = 1.0


Load = Closed | Open


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is sent: a number of requests, or as many as begin within a time; with both, what is reached first."""

    requests: int | None
    seconds: float | None


def due_times(load: Open, extent: Extent, chance: random.Random) -> Iterator[float]:
    """Yield the seconds from the start at which requests are due; the first is 0."""
    due = _arrivals(load, chance)
    if extent.seconds is not None:
        due = takewhile(lambda at: at < (extent.seconds or 0.0), due)
    return due if extent.requests is None else islice(due, extent.requests)


def _arrivals(load: Open, chance: random.Random) -> Iterator[float]:
    due = 0.0
    while True:
        yield due
        due += chance.gammavariate(load.burstiness, 1 / (load.rate * load.burstiness))
