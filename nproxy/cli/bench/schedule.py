"""When requests are sent: so many at once (a closed loop), or at times that nobody's answers change (an open loop)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile


@dataclass(frozen=True, slots=True)
class Closed:
    """So many requests are in flight at any time: one goes out when another has ended."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Open:
    """Requests are due at times drawn beforehand, so many a second, however long answers take.

    burstiness: shape of the gamma distribution of the times between them, as in `vllm bench serve`. 1 is a Poisson
    process; below it requests come in bursts, above it evenly.
    """

    rate: float
    burstiness: float = 1.0


Load = Closed | Open


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is sent: so many requests, or as many as begin within so many seconds; with both, what comes first."""

    requests: int | None
    seconds: float | None


def due_times(load: Open, extent: Extent, chance: random.Random) -> Iterator[float]:
    """The seconds from the start at which requests are due; the first at once."""
    due = _arrivals(load, chance)
    if extent.seconds is not None:
        due = takewhile(lambda at: at < (extent.seconds or 0.0), due)
    return due if extent.requests is None else islice(due, extent.requests)


def _arrivals(load: Open, chance: random.Random) -> Iterator[float]:
    due = 0.0
    while True:
        yield due
        due += chance.gammavariate(load.burstiness, 1 / (load.rate * load.burstiness))
