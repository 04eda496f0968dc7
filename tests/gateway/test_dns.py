"""Servers behind a host name: every address is a replica, and the set changes while calls run."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trustme

from nproxy.config import Config
from nproxy.upstreams import dns
from nproxy.upstreams.http import connecting
from tests.fakes.upstream import Behaviour, FakeUpstream, at_once
from tests.gateway.conftest import Gateway, gateway_for

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Resolver:
    """What the name `fleet.test` resolves to; None: the resolver fails."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] | None = HOSTS
        self.looks = 0
        self._looked = asyncio.Event()

    async def __call__(self, name: str) -> Sequence[str]:
        assert name == "fleet.test"
        self.looks += 1
        self._looked.set()
        if self.addresses is None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.addresses

    async def looked(self) -> None:
        """Wait until the name has been looked up twice more: what it resolves to now has arrived."""
        async with asyncio.timeout(5):
            for _ in range(2):
                self._looked.clear()
                await self._looked.wait()
            await asyncio.sleep(0)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(dns, "resolve", resolver)
    monkeypatch.setattr(dns, "INTERVAL_SECONDS", 0.005)
    return resolver


@pytest.fixture
async def fleet() -> AsyncIterator[list[FakeUpstream]]:
    """Servers at three addresses, all on the same port."""
    async with AsyncExitStack() as stack:
        servers: list[FakeUpstream] = []
        for host in HOSTS:
            server = FakeUpstream(Behaviour(), host=host)
            server.port = servers[0].port if servers else 0
            servers.append(await stack.enter_async_context(server))
        yield servers


def settings(port: int, **more: Any) -> dict[str, Any]:
    replicas = [{"dns": f"fleet.test:{port}"}]
    return {"upstreams": [{"name": "fake", "replicas": replicas, "n": "fanout", **more}]}


def shown(gateway: Gateway) -> set[str]:
    return {replica.label.split("//")[1].split(":")[0] for replica in gateway.app.upstreams.all[0].gate.replicas}


async def test_all_addresses_serve_and_are_called_by_the_name(fleet: list[FakeUpstream], resolver: Resolver) -> None:
    port = fleet[0].port
    async with gateway_for(settings(port)) as gateway:
        answer = await at_once(gateway.ask(n=6), *((server, 2) for server in fleet))
        assert answer.status_code == 200
        assert [len(server.calls) for server in fleet] == [2, 2, 2]
        assert {seen.headers["host"] for server in fleet for seen in server.requests} == {f"fleet.test:{port}"}


async def test_a_set_that_changes_under_load_fails_no_request(fleet: list[FakeUpstream], resolver: Resolver) -> None:
    for server in fleet:
        server.behaviour = Behaviour(pause=0.002)
    async with gateway_for(settings(fleet[0].port)) as gateway:
        answers: list[Any] = []

        async def ask(until: Callable[[], bool]) -> None:
            while not until():
                answers.append(await gateway.stream(n=3))

        changed = False
        async with asyncio.TaskGroup() as clients:
            for _ in range(4):
                clients.create_task(ask(lambda: changed))
            found: list[Sequence[str] | None] = [HOSTS[:1], HOSTS[1:], HOSTS[2:], HOSTS, [], None, HOSTS[:2]]
            for addresses in found:
                resolver.addresses = addresses
                await resolver.looked()
                assert shown(gateway) == set(addresses or HOSTS)
            changed = True
    assert len(answers) >= 4
    assert all(answer.status == 200 and answer.done and len(answer.texts) == 3 for answer in answers)


async def test_metrics_and_status_tell_whether_the_name_resolves(fleet: list[FakeUpstream], resolver: Resolver) -> None:
    async with gateway_for(settings(fleet[0].port)) as gateway:

        async def told() -> tuple[float, bool, list[str]]:
            (upstream,) = (await gateway.client.get("/status")).json()["upstreams"]
            (host,) = upstream["hosts"]
            assert host["name"] == "fleet.test"
            metric = await gateway.metric('nproxy_host_resolved{host="fleet.test",upstream="fake"}')
            return metric, host["resolved"], host["addresses"]

        assert await told() == (1, True, [*HOSTS])
        silences: tuple[Sequence[str] | None, ...] = None, ()
        for silence in silences:
            resolver.addresses = silence
            await resolver.looked()
            assert await told() == (0, False, [*HOSTS]), "calls go on to the last known addresses"
            resolver.addresses = HOSTS[:2]
            await resolver.looked()
            assert await told() == (1, True, [*HOSTS[:2]])
            resolver.addresses = HOSTS
            await resolver.looked()


async def test_a_name_that_a_reload_brings_is_resolved_at_once(
    fleet: list[FakeUpstream], resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "INTERVAL_SECONDS", 3600)
    before = {"upstreams": [{"name": "fake", "replicas": [fleet[0].url], "n": "fanout"}]}
    async with gateway_for(before) as gateway:
        assert (await gateway.ask()).status_code == 200
        assert resolver.looks == 0
        gateway.app.reconfigure(Config.model_validate({"listen": {"port": 0}, **settings(fleet[0].port)}))
        async with asyncio.timeout(5):
            while shown(gateway) != set(HOSTS):
                await asyncio.sleep(0)
        assert (await gateway.ask(n=3)).status_code == 200


async def test_calls_in_flight_outlive_the_address_that_they_went_to(
    fleet: list[FakeUpstream], resolver: Resolver
) -> None:
    resolver.addresses = HOSTS[:1]
    first, second, _ = fleet
    first.behaviour = Behaviour(hold_after=1, go_on=asyncio.Event())
    async with gateway_for(settings(first.port)) as gateway:
        streaming = asyncio.create_task(gateway.stream(n=2))
        await first.until(lambda: len(first.open_calls) == 2)
        resolver.addresses = HOSTS[1:2]
        await resolver.looked()
        assert (await gateway.ask()).status_code == 200
        assert len(second.calls) == 1 and len(first.calls) == 2
        first.behaviour.go_on.set()
        answer = await streaming
        assert answer.done and len(answer.texts) == 2


async def test_localhost_is_resolved_for_real(upstream: FakeUpstream) -> None:
    replicas = [f"dns:localhost:{upstream.port}"]
    async with gateway_for({"upstreams": [{"name": "fake", "replicas": replicas, "n": "fanout"}]}) as gateway:
        assert "127.0.0.1" in shown(gateway)
        assert (await gateway.ask()).status_code == 200
        assert {seen.headers["host"] for seen in upstream.calls} == {f"localhost:{upstream.port}"}


@pytest.mark.parametrize(("certified", "status"), [("fleet.test", 200), ("127.0.0.1", 502)])
async def test_a_certificate_must_be_that_of_the_name(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, certified: str, status: int
) -> None:
    resolver.addresses = HOSTS[:1]
    authority, shown, trusting = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(certified).configure_cert(shown)
    authority.configure_trust(trusting)
    monkeypatch.setattr(connecting, "trusted", lambda: trusting)
    async with FakeUpstream(tls=shown) as server:
        replicas = [{"dns": f"fleet.test:{server.port}", "scheme": "https"}]
        async with gateway_for({"upstreams": [{"name": "fake", "replicas": replicas, "n": "fanout"}]}) as gateway:
            assert (await gateway.ask()).status_code == status
