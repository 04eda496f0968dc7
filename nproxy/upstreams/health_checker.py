"""Health checks of the replicas of upstreams, as often as what is known of them demands."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.gate import Gate
from nproxy.upstreams.replicas import Replica

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a look at a replica of an upstream showed, for other processes of this gateway.

    status: of the answer, None where none came. seconds: how long ago it began.
    """

    upstream: str
    replica: str
    status: int | None
    seconds: float


class Watched(Protocol):
    """An upstream, as far as it is looked at."""

    gate: Gate

    @property
    def watched(self) -> bool: ...

    def check(self, replica: Replica) -> Coroutine[Any, Any, CheckResult | None]: ...


async def watch(
    upstreams: Callable[[], Iterable[Watched]],
    jitter: Draw = random.random,
    tell: Callable[[CheckResult], None] = lambda _: None,
) -> None:
    """Check replicas until cancelled. upstreams: gives those that there are now; they and their replicas change.

    tell: is called with every result.

    No two looks at one replica are under way at once, and none waits for another's.
    """
    under_way: set[Replica] = set()

    async def look(upstream: Watched, replica: Replica) -> None:
        try:
            if (seen := await upstream.check(replica)) is not None:
                tell(seen)
        finally:
            under_way.discard(replica)

    async with asyncio.TaskGroup() as looks:
        while True:
            now = time.monotonic()
            for upstream in upstreams():
                for replica in upstream.gate.replicas if upstream.watched else ():
                    if replica not in under_way and replica.health.due() <= now:
                        under_way.add(replica)
                        replica.health.began(now, jitter())
                        looks.create_task(look(upstream, replica))
            await asyncio.sleep(TICK_SECONDS)
