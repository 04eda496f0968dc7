"""A replica that asks for a pause, or was not reached, gets no calls while another one can take them."""

from __future__ import annotations

import time

import pytest

from nproxy.choices.events import Event, Failure, LegFailed
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.upstream import Upstream
from tests.fakes.behaviour import Behaviour
from tests.fakes.upstream import FakeUpstream
from tests.upstreams.conftest import Caller, upstream_of


async def failed(upstream: Upstream, caller: Caller) -> Failure | None:
    """Make a call; return its failure, None if it was answered."""
    batches: list[list[Event]] = []
    await upstream.call(caller.call(stream=False), CallGroup(), batches.append)
    last = batches[-1][-1]
    return last.failure if isinstance(last, LegFailed) else None


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_refusal_with_retry_after_is_a_pause_in_which_the_other_replica_has_the_calls(
    caller: Caller, status: int
) -> None:
    refuses = Behaviour(status=status, headers={"Retry-After": "60"}, body=b"{}")
    async with FakeUpstream(refuses) as tired, FakeUpstream() as fresh, upstream_of(tired, fresh) as upstream:
        upstream.gate.replicas[1].resting_until = time.monotonic() + 60  # so that the first call goes to the other one
        failure = await failed(upstream, caller)
        assert failure is not None and not failure.another, "the other one has a pause, too"
        upstream.gate.replicas[1].resting_until = 0.0
        rests = upstream.gate.replicas[0].resting_until - time.monotonic()
        assert 50 < rests <= 60
        for _ in range(5):
            assert await failed(upstream, caller) is None
        assert (len(tired.calls), len(fresh.calls)) == (1, 5)


async def test_without_retry_after_there_is_no_pause(caller: Caller) -> None:
    async with FakeUpstream(Behaviour(status=429, body=b"{}")) as tired, upstream_of(tired) as upstream:
        assert await failed(upstream, caller) is not None
        assert upstream.gate.replicas[0].resting_until == 0.0


@pytest.mark.parametrize(
    ("refuses", "another"),
    [
        (Behaviour(status=429, headers={"Retry-After": "60"}, body=b"{}"), True),
        (Behaviour(status=508, body=b"{}"), True),
        (Behaviour(status=500, body=b"{}"), False),
    ],
    ids=["a pause", "a loop", "a fault"],
)
async def test_a_pause_and_a_loop_say_whether_another_replica_can_take_the_leg(
    caller: Caller, refuses: Behaviour, another: bool
) -> None:
    async with FakeUpstream(refuses) as one, FakeUpstream(refuses) as other, upstream_of(one, other) as upstream:
        failure = await failed(upstream, caller)
        assert failure is not None and failure.another is another
    async with FakeUpstream(refuses) as alone, upstream_of(alone) as upstream:
        failure = await failed(upstream, caller)
        assert failure is not None and not failure.another


async def test_a_replica_that_refuses_the_connection_is_avoided_for_5_s(caller: Caller) -> None:
    async with FakeUpstream() as there, upstream_of("http://127.0.0.1:9/v1", there) as upstream:
        upstream.gate.replicas[1].resting_until = time.monotonic() + 60  # so that the first call goes to the other one
        assert await failed(upstream, caller) is not None
        upstream.gate.replicas[1].resting_until = 0.0
        assert 4 < upstream.gate.replicas[0].avoid_until - time.monotonic() <= 5
        assert await failed(upstream, caller) is None
