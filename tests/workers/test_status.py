"""What several workers tell as one document."""

from __future__ import annotations

from typing import Any

from nproxy.upstreams.breaker import State
from nproxy.workers.status import together


def told(up: bool | None, legs: int, *replicas: str, **more: Any) -> dict[str, Any]:
    return {
        "draining": False,
        "inflight": {"requests": 1, "choices": legs, "waiting": 5},
        "upstreams": [
            {
                "name": "u",
                "legs_waiting": 2,
                "learned": {},
                "replicas": [
                    {"replica": url, "weight": 2, "models": ["m"], "up": up, "legs": legs} for url in replicas
                ],
                **more,
            }
        ],
    }


def test_counts_add_up_and_the_same_replica_is_one() -> None:
    whole = together([told(True, 3, "a", "b"), told(True, 4, "a", "c", learned={"m": {"n": 1}})])
    assert whole["inflight"] == {"requests": 2, "choices": 7, "waiting": 10}
    (upstream,) = whole["upstreams"]
    assert upstream["legs_waiting"] == 4
    assert upstream["learned"] == {"m": {"n": 1}}
    assert {one["replica"]: one["legs"] for one in upstream["replicas"]} == {"a": 7, "b": 3, "c": 4}
    assert all((one["weight"], one["models"]) == (2, ["m"]) for one in upstream["replicas"])


def test_a_replica_is_down_where_anybody_finds_it_so() -> None:
    def up(*told_up: bool | None) -> bool | None:
        found: bool | None = together([told(one, 0, "a") for one in told_up])["upstreams"][0]["replicas"][0]["up"]
        return found

    assert (up(True, False), up(None, True), up(None, None), up(False, None)) == (False, True, None, False)


def test_a_host_name_is_unresolved_where_anybody_finds_it_so() -> None:
    def hosts(resolved: bool | None) -> list[dict[str, Any]]:
        return [{"name": "fleet.test", "resolved": resolved, "addresses": ["10.0.0.1"]}]

    for all_told, shown in (((True, False), False), ((None, True), True), ((None, None), None)):
        (upstream,) = together([told(True, 0, hosts=hosts(one)) for one in all_told])["upstreams"]
        assert upstream["hosts"] == hosts(shown)


def test_a_breaker_is_open_where_anybody_has_it_open() -> None:
    def breaker(*told_states: State) -> str:
        entries = [{"name": "u", "replicas": [{"replica": "a", "breaker": state}]} for state in told_states]
        found: str = together([{"upstreams": [entry]} for entry in entries])["upstreams"][0]["replicas"][0]["breaker"]
        return found

    closed, half_open, opened = State.CLOSED, State.HALF_OPEN, State.OPEN
    assert (breaker(closed, opened), breaker(opened, half_open), breaker(half_open, closed)) == (
        "open",
        "open",
        "half_open",
    )


def test_nobody_tells_nothing() -> None:
    assert together([]) == {}
