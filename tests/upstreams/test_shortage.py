"""No file descriptor is left for calls: that is the gateway's own trouble, and no replica is held to be down for it."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from nproxy.choices.events import Event, FailureKind, LegFailed
from nproxy.config import Upstream as Settings
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.verdicts import serves
from nproxy.upstreams.via import Pseudonym
from tests.upstreams.conftest import Caller

NOBODY = "http://127.0.0.1:9/v1"
"""Where a call is refused, if there is a socket to make it by."""


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process can open nothing while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)  # it is the lowest that is free, so all below are taken
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """Two replicas, a breaker that opens at the first failure, and one check that brings a replica down."""
    connections = Connections(Pseudonym("nproxy-1"))
    replicas, health = [NOBODY, "http://127.0.0.1:11/v1"], {"down_after": 1}
    told = {"name": "u", "replicas": replicas, "breaker": {"in_a_row": 1}, "health": health}
    yield Upstream(Settings.model_validate(told), connections)
    await connections.close()


async def test_a_call_fails_and_says_why_and_its_replica_is_believed_in(caller: Caller, upstream: Upstream) -> None:
    group = CallGroup()
    batches: list[list[Event]] = []
    with no_descriptors():
        await upstream.call(caller.call(stream=False), group, batches.append)
    (batch,) = batches
    replica = group.replica
    assert replica is not None
    assert isinstance(failed := batch[-1], LegFailed)
    assert (failed.failure.kind, failed.failure.ours) == (FailureKind.CONNECT, True)
    assert not failed.failure.another, "another replica could not be reached, either"
    assert failed.failure.message == "The gateway has no resources left to call the upstream 'u'."
    assert (replica.up, replica.avoid_until, replica.breaker_state) == (None, 0.0, "closed")


async def test_a_look_says_nothing_to_anybody(upstream: Upstream) -> None:
    replica = upstream.gate.replicas[0]
    replica.health.began(0.0, 0.5)
    with no_descriptors():
        assert await upstream.check(replica) is None
    assert not replica.health.doubtful and replica.health.answered is None
    seen = await upstream.check(replica)
    assert seen is not None and seen.status is None and replica.health.down, "with a descriptor it is found out"


async def test_who_refuses_a_call_is_still_to_blame(caller: Caller) -> None:
    failure = await caller.failure(NOBODY)
    assert not failure.ours and serves(failure) is False
