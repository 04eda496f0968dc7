"""What the calls of one request avoid."""

from __future__ import annotations

from nproxy.upstreams.kin import Kin
from nproxy.upstreams.replicas import Replica


def test_a_replica_that_was_full_twice_is_avoided_until_a_sibling_found_room_there() -> None:
    full, broken = (Replica(base=f"http://{name}/v1", socket=None, label=name) for name in ("full", "broken"))
    kin = Kin()
    assert not kin.avoided(0)
    kin.failed[0] = {full, broken}
    kin.full[0] = [full]
    kin.praised.add(full)
    assert kin.avoided(0) == {full, broken}, "one that turned it away once is retried elsewhere"
    kin.full[0].append(full)
    assert kin.avoided(0) == {broken}
    kin.praised = {broken}
    assert kin.avoided(0) == {full, broken}, "that siblings came whole there excuses no other failure"
