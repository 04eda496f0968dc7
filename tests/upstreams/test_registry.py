"""Leases and drains: any order of announcing, renewing, leaving, expiring and draining."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.upstreams import registry as module
from nproxy.upstreams.membership import Registered, Server
from nproxy.upstreams.registrar import Registrar
from nproxy.upstreams.registry import Registry, Snapshot, TooMany

A, B = Server("http://a/v1"), Server("http://b/v1", 2, ("m",))


def servers(registry: Registry, upstream: str = "u") -> list[str]:
    registered = registry.snapshot().get(upstream, Registered().to_json())
    return [server["url"] for server in registered["servers"]]


def test_a_lease_runs_out() -> None:
    registry = Registry()
    assert registry.announce("u", A, 30, now=100)
    assert registry.expire(129.9) == [] and servers(registry) == [A.url]
    assert registry.next_expiry() == 130
    assert registry.expire(130) == [("u", A.url)] and servers(registry) == []
    assert registry.next_expiry() is None


def test_a_dot_at_the_end_of_a_host_makes_no_other_server() -> None:
    registry = Registry()
    assert registry.announce("u", Server("http://host:1/v1"), 30, now=0)
    assert not registry.announce("u", Server("http://host.:1/v1"), 30, now=0)
    assert registry.leave("u", "http://host:1/v1") and servers(registry) == []


def test_a_renewed_lease_counts_from_the_renewal() -> None:
    registry = Registry()
    registry.announce("u", A, 30, now=0)
    assert not registry.announce("u", A, 10, now=25)
    assert registry.expire(34.9) == [] and registry.expire(35) == [("u", A.url)]


def test_renewing_changes_nothing_that_replicas_depend_on() -> None:
    registry = Registry()
    registry.announce("u", A, 30, now=0)
    registry.announce("u", B, 30, now=0)
    before = registry.snapshot()
    registry.announce("u", A, 30, now=5)
    assert registry.snapshot() == before
    registry.announce("u", Server(A.url, 3), 30, now=5)
    assert registry.snapshot() != before


def test_a_drain_outlives_renewals_leaving_and_leases() -> None:
    registry = Registry()
    registry.announce("u", A, 30, now=0)
    registry.drain("u", A.url)
    registry.announce("u", A, 30, now=10)
    registry.expire(1000)
    registry.announce("u", A, 30, now=2000)
    registry.leave("u", A.url)
    assert registry.draining("u") == {A.url} and registry.draining("other") == frozenset()
    assert registry.undrain("u", A.url) and not registry.undrain("u", A.url)
    assert registry.snapshot() == {}


def test_there_is_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SERVERS", 1)
    monkeypatch.setattr(module, "MOST_DRAINING", 1)
    registry = Registry()
    registry.announce("u", A, 30, now=0)
    with pytest.raises(TooMany):
        registry.announce("v", B, 30, now=0)
    registry.announce("u", A, 30, now=1)
    registry.drain("u", A.url)
    registry.drain("u", A.url)
    with pytest.raises(TooMany):
        registry.drain("u", B.url)


STEPS = st.one_of(
    st.tuples(st.just("announce"), st.sampled_from("uv"), st.sampled_from("abc"), st.floats(1, 20)),
    st.tuples(st.just("leave"), st.sampled_from("uv"), st.sampled_from("abc"), st.just(0.0)),
    st.tuples(st.just("drain"), st.sampled_from("uv"), st.sampled_from("abc"), st.just(0.0)),
    st.tuples(st.just("undrain"), st.sampled_from("uv"), st.sampled_from("abc"), st.just(0.0)),
    st.tuples(st.just("wait"), st.just(""), st.just(""), st.floats(0, 20)),
)


@given(st.lists(STEPS, max_size=40))
def test_any_order_of_steps_comes_to_what_was_said_last(steps: list[tuple[str, str, str, float]]) -> None:
    registry, now = Registry(), 0.0
    until: dict[tuple[str, str], float] = {}
    marks: set[tuple[str, str]] = set()
    for step, upstream, url, seconds in steps:
        key = (upstream, url)
        match step:
            case "announce":
                assert registry.announce(upstream, Server(url), seconds, now) == (key not in until)
                until[key] = now + seconds
            case "leave":
                assert registry.leave(upstream, url) == (until.pop(key, None) is not None)
            case "drain":
                registry.drain(upstream, url)
                marks.add(key)
            case "undrain":
                assert registry.undrain(upstream, url) == (key in marks)
                marks.discard(key)
            case _:
                now += seconds
                over = {key for key, end in until.items() if end <= now}
                assert set(registry.expire(now)) == over
                until = {key: end for key, end in until.items() if key not in over}
        told = json.loads(json.dumps(registry.snapshot()))
        for name in "uv":
            registered = Registered.read(told.get(name, Registered().to_json()))
            assert {(name, server.url) for server in registered.servers} == {key for key in until if key[0] == name}
            assert {(name, address) for address in registered.draining} == {key for key in marks if key[0] == name}
            assert registry.leases(name, now) == {u: end - now for (n, u), end in until.items() if n == name}
        assert registry.next_expiry() == min(until.values(), default=None)


async def test_who_keeps_replicas_is_told_of_changes_and_of_nothing_else() -> None:
    told: list[Snapshot] = []
    registrar = Registrar(told.append)
    for change, then in (
        (lambda: registrar.announce("u", A, 30), {"u": {"servers": [A.to_json()], "draining": []}}),
        (lambda: registrar.drain("u", A.url), {"u": {"servers": [A.to_json()], "draining": [A.url]}}),
        (lambda: registrar.undrain("u", A.url), {"u": {"servers": [A.to_json()], "draining": []}}),
        (lambda: registrar.leave("u", A.url), {}),
    ):
        change()
        assert told == [then], "at once"
        change()
        assert told == [then], "it has changed nothing more"
        told.clear()


async def test_what_registers_leaves_and_drains_is_logged_and_no_renewal_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registrar = Registrar(lambda _: None)
    registrar.undrain("u", A.url)
    registrar.leave("u", A.url)
    assert caplog.messages == [], "nothing was there"
    registrar.announce("u", A, 30)
    assert caplog.messages == ["a server has registered"]
    registrar.announce("u", A, 30)
    registrar.drain("u", A.url)
    registrar.undrain("u", A.url)
    registrar.leave("u", A.url)
    assert caplog.messages[1:] == [
        "a replica is draining",
        "a replica is no longer draining",
        "a server has deregistered",
    ]
    assert all(vars(line)["fields"] == {"upstream": "u", "replica": A.url} for line in caplog.records)


async def test_leases_run_out_by_themselves_the_shortest_first(caplog: pytest.LogCaptureFixture) -> None:
    told: asyncio.Queue[Snapshot] = asyncio.Queue()
    registrar = Registrar(told.put_nowait)
    running = asyncio.create_task(registrar.run())
    registrar.announce("u", A, 3600)
    await asyncio.sleep(0)
    registrar.announce("u", B, 0.02)
    async with asyncio.timeout(5):
        assert [[s["url"] for s in (await told.get())["u"]["servers"]] for _ in range(3)] == [
            [A.url],
            [A.url, B.url],
            [A.url],
        ]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    (line,) = (line for line in caplog.records if line.levelname == "WARNING")
    assert line.message == "a server has not renewed its lease"
    assert vars(line)["fields"] == {"upstream": "u", "replica": B.url}
