"""Makes the health checks of upstreams' replicas, as often as the state of each demands."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

from nproxy.upstreams.health_checks import CheckResult
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.upstream import Upstream

TICK_SECONDS = 0.25


async def watch(upstreams: Callable[[], Iterable[Upstream]], tell: Callable[[CheckResult], None]) -> None:
    """Check replicas until cancelled.

    upstreams: returns the current ones; they and their replicas may change. tell: called with each result that is of
    use to other processes.

    No two checks of one replica run at once, and none waits for that of another replica.
    """
    under_way: set[Replica] = set()

    async def check(upstream: Upstream, replica: Replica) -> None:
        try:
            if (result := await upstream.check(replica)) is not None:
                tell(result)
        finally:
            under_way.discard(replica)

    async with asyncio.TaskGroup() as checks:
        while True:
            now = time.monotonic()
            for upstream in upstreams():
                for replica in upstream.to_check:
                    if replica not in under_way and replica.health.due() <= now:
                        under_way.add(replica)
                        replica.health.began(now, random.random())
                        checks.create_task(check(upstream, replica))
            await asyncio.sleep(TICK_SECONDS)
