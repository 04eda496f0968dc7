"""What the calls of one request avoid."""

from __future__ import annotations

from nproxy.upstreams.kin import Kin
from nproxy.upstreams.replicas import Replica


def test_a_replica_without_room_is_avoided_as_one_that_failed_but_apart_from_those() -> None:
    full, broken = (Replica(base=f"http://{name}/v1", socket=None, label=name) for name in ("full", "broken"))
    kin = Kin()
    assert not kin.avoided(0)
    kin.failed[0] = {full, broken}
    kin.turned_away(0, full)
    assert kin.failed[0] == {broken} and set(kin.avoided(0)) == {full, broken}
    kin.full[0] = set()  # there may be room again
    assert set(kin.avoided(0)) == {broken} and not kin.avoided(1)


def test_whether_another_leg_is_being_called() -> None:
    kin = Kin()
    assert not kin.beside(0)
    kin.at[0] = Replica(base="http://r/v1", socket=None, label="r")
    assert not kin.beside(0) and kin.beside(1)
