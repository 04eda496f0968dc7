"""What the calls of one request avoid."""

from __future__ import annotations

from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.replicas import Replica


def test_a_replica_without_room_is_avoided_as_one_that_failed_but_apart_from_those() -> None:
    full, broken = (Replica(base=f"http://{name}/v1", socket=None, label=name) for name in ("full", "broken"))
    group = CallGroup()
    assert not group.avoided(0)
    group.failed[0] = {full, broken}
    group.turned_away(0, full)
    assert group.failed[0] == {broken} and set(group.avoided(0)) == {full, broken}
    group.full[0] = set()  # there may be room again
    assert set(group.avoided(0)) == {broken} and not group.avoided(1)


def test_whether_another_leg_is_being_called() -> None:
    group = CallGroup()
    assert not group.others_in_flight(0)
    group.at[0] = Replica(base="http://r/v1", socket=None, label="r")
    assert not group.others_in_flight(0) and group.others_in_flight(1)
