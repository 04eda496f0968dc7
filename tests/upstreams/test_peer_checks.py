"""What a process takes from the health checks of another one."""

from __future__ import annotations

import time

import pytest

from nproxy import config
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.replicas import AVOID_SECONDS
from tests.upstreams.conftest import replicas


@pytest.mark.parametrize("status", [200, 404])
def test_a_replica_that_answers_another_process_is_up(status: int) -> None:
    """It was never down by its checks, so nothing else would say so until a call goes there."""
    (replica,) = there = replicas(1)
    gate = Gate(there, Policy(1, health=config.Health()))
    replica.unreachable()
    now = time.monotonic()
    gate.note_peer_check(replica, status, now - 1.0, 0.5)
    assert not replica.up, "it asked before the call failed"
    gate.note_peer_check(replica, None, now + 5.0, 0.5)
    assert not replica.up
    gate.note_peer_check(replica, status, now + 10.0, 0.5)
    assert replica.up
    assert replica.avoid_until < now + AVOID_SECONDS
