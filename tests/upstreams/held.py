"""Permits held the way that calls hold theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nproxy.upstreams.permit import Permit
from nproxy.upstreams.replicas import Replica


@asynccontextmanager
async def held(permit: Permit) -> AsyncIterator[Replica]:
    """Hold a permit, waiting for it if necessary."""
    with permit.at_once() or await permit.acquire() as replica:
        yield replica
