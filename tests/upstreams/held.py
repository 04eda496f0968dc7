"""ReplicaSlots held the way that calls hold theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nproxy.upstreams.replica_call import ReplicaCall
from nproxy.upstreams.replicas import Replica


@asynccontextmanager
async def held(attempt: ReplicaCall) -> AsyncIterator[Replica]:
    """Hold a slot, waiting for it if necessary."""
    with attempt.at_once() or await attempt.acquire() as replica:
        yield replica
