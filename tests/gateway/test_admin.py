"""The admin port: who may come in, what it shows, and servers that come, renew, go and drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from nproxy.gateway.admin.gateway import SingleProcess
from nproxy.gateway.admin.port import admin_port
from nproxy.upstreams import registry
from nproxy.upstreams.registrar import Registrar
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, at_once
from tests.gateway.conftest import Gateway, envelope, gateway_for

TOKEN = "canary-7d02"
REPLICAS = "/admin/upstreams/fake/replicas"


@dataclass
class Fleet:
    """A gateway, its admin port and a client for that, which shows the token where there is one."""

    gateway: Gateway
    admin: httpx.AsyncClient
    registrar: Registrar

    async def announce(self, server: FakeUpstream | str, **fields: Any) -> httpx.Response:
        url = server if isinstance(server, str) else server.url
        return await self.admin.post(REPLICAS, json={"url": url, **fields})

    async def leave(self, server: FakeUpstream) -> httpx.Response:
        return await self.admin.delete(f"{REPLICAS}?url={quote(server.url, safe='')}")

    async def drain(self, server: FakeUpstream | str, act: str = "drain") -> httpx.Response:
        return await self.admin.post(f"{REPLICAS}/{act}", json={"url": getattr(server, "url", server)})

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """By their addresses."""
        listed = (await self.admin.get(REPLICAS)).json()["replicas"]
        return {replica["replica"]: replica for replica in listed}


@asynccontextmanager
async def fleet_for(*replicas: object, token: str | None = TOKEN, **settings: Any) -> AsyncIterator[Fleet]:
    """A gateway with these fixed replicas, and an admin port."""
    upstream = {"name": "fake", "replicas": list(replicas), "n": "fanout", **settings}
    admin = {"port": 0, **({} if token is None else {"token": token})}
    async with gateway_for({"upstreams": [upstream], "admin": admin}) as gateway:
        registrar = Registrar(gateway.app.upstreams.take_members)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with (
            admin_port(SingleProcess(gateway.app), registrar) as url,
            plain_client(url, headers=headers) as client,
        ):
            yield Fleet(gateway, client, registrar)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """No server is there until one announces itself."""
    async with fleet_for() as begun:
        yield begun


@pytest.fixture
async def servers() -> AsyncIterator[list[FakeUpstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeUpstream(Behaviour())) for _ in range(2)]


async def test_one_process_cannot_be_replaced(fleet: Fleet) -> None:
    answer = await fleet.admin.post("/admin/restart")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "one_process")
    assert (await fleet.admin.get("/admin/restart")).status_code == 405


async def test_a_server_announces_itself_serves_renews_and_leaves(fleet: Fleet, servers: list[FakeUpstream]) -> None:
    server = servers[0]
    answer = await fleet.announce(server, lease_seconds=30)
    assert answer.status_code == 201
    assert answer.json() == {
        "upstream": "fake",
        "replica": server.url,
        "weight": 1,
        "models": None,
        "draining": False,
        "lease_seconds": 30,
        "renew_seconds": 10,
    }
    assert (await fleet.gateway.ask(n=3)).status_code == 200
    assert len(server.calls) == 3
    assert (await fleet.announce(server, weight=2)).status_code == 200
    (replica,) = (await fleet.replicas()).values()
    assert (replica["source"], replica["weight"]) == ("registered", 2)
    assert 0 < replica["lease_seconds"] <= 30
    assert (await fleet.leave(server)).status_code == 204
    assert await fleet.replicas() == {}
    assert envelope(await fleet.leave(server))["code"] == "replica_not_found"


async def test_a_lease_that_runs_out_takes_the_replica_away_and_not_its_calls(
    fleet: Fleet, servers: list[FakeUpstream]
) -> None:
    first, second = servers
    first.behaviour = Behaviour(hold_after=1, go_on=asyncio.Event())
    await fleet.announce(first, lease_seconds=1)
    streaming = asyncio.create_task(fleet.gateway.stream(n=2))
    await first.until(lambda: len(first.open_calls) == 2)
    await fleet.announce(second)
    async with asyncio.timeout(10):
        while first.url in await fleet.replicas():
            await asyncio.sleep(0.02)
    assert (await fleet.gateway.ask(n=4)).status_code == 200
    assert (len(first.calls), len(second.calls)) == (2, 4)
    first.behaviour.go_on.set()
    answer = await streaming
    assert answer.done and len(answer.texts) == 2


async def test_a_replica_is_drained_under_streams_until_it_is_undrained(servers: list[FakeUpstream]) -> None:
    first, second = servers
    async with fleet_for(first.url, second.url) as fleet:
        first.behaviour = second.behaviour = Behaviour(hold_after=1, go_on=asyncio.Event())
        streaming = asyncio.create_task(fleet.gateway.stream(n=4))
        for one in (first, second):
            await one.until(lambda server=one: len(server.open_calls) == 2)  # type: ignore[misc]
        assert (await fleet.drain(first)).json() == {"upstream": "fake", "replica": first.url, "draining": True}
        second.behaviour = Behaviour()
        assert (await fleet.gateway.ask(n=4)).status_code == 200
        assert (len(first.calls), len(second.calls)) == (2, 6)
        shown = await fleet.replicas()
        assert (shown[first.url]["draining"], shown[second.url]["draining"]) == (True, False)
        assert shown[first.url]["legs"] == 2, "what it has ends by itself"
        first.behaviour.go_on.set()
        answer = await streaming
        assert answer.done and len(answer.texts) == 4
        first.behaviour = Behaviour()
        assert (await fleet.drain(first, "undrain")).json()["draining"] is False
        await at_once(fleet.gateway.ask(n=4), (first, 4), (second, 8))
        assert len(first.calls) == 4


async def test_a_drained_server_stays_so_whatever_its_lease_does(fleet: Fleet, servers: list[FakeUpstream]) -> None:
    server = servers[0]
    await fleet.announce(server)
    await fleet.drain(server)
    assert (await fleet.announce(server)).json()["draining"] is True
    await fleet.leave(server)
    assert (await fleet.admin.get(REPLICAS)).json()["draining"] == [server.url]
    assert (await fleet.announce(server)).json()["draining"] is True
    await fleet.drain(server, "undrain")
    assert (await fleet.gateway.ask()).status_code == 200


async def test_calls_go_to_the_servers_that_serve_their_model(fleet: Fleet, servers: list[FakeUpstream]) -> None:
    first, second = servers
    await fleet.announce(first, models=[MODEL, "common"])
    await fleet.announce(second, models=["other", "common"])
    for model in (MODEL, "other"):
        assert (await fleet.gateway.ask(model=model, n=4)).status_code == 200
    common = fleet.gateway.ask(model="common", n=4)
    assert (await at_once(common, (first, 6), (second, 6))).status_code == 200
    assert [call.body["model"] for call in first.calls] == [MODEL] * 4 + ["common"] * 2
    assert [call.body["model"] for call in second.calls] == ["other"] * 4 + ["common"] * 2
    assert (await fleet.gateway.ask(model="unknown")).status_code == 404
    listed = (await fleet.gateway.client.get("/v1/models")).json()["data"]
    assert {entry["id"] for entry in listed} == {MODEL, "other", "common"}


async def test_what_passes_through_goes_to_the_servers_that_serve_its_model(
    fleet: Fleet, servers: list[FakeUpstream]
) -> None:
    first, second = servers
    await fleet.announce(first, models=[MODEL])
    await fleet.announce(second, models=["other"])
    for _ in range(4):
        sent = {"model": "other", "input": "x"}
        assert (await fleet.gateway.post(sent, "/v1/embeddings")).status_code == 200
    assert [seen.path for seen in second.requests if seen.method == "POST"] == ["/v1/embeddings"] * 4


async def test_what_a_server_said_that_it_serves_is_believed_and_not_asked_for(fleet: Fleet) -> None:
    async with FakeUpstream(models=["unsaid"]) as server:
        await fleet.announce(server, models=["said"])
        listed = (await fleet.gateway.client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["said"]
        assert (await fleet.gateway.ask(model="unsaid")).status_code == 404


async def test_an_upstreams_list_is_that_of_all_its_servers(servers: list[FakeUpstream]) -> None:
    listed, announced = servers
    async with fleet_for(listed.url) as fleet:
        assert [entry["id"] for entry in (await fleet.gateway.client.get("/v1/models")).json()["data"]] == [MODEL]
        await fleet.announce(announced, models=["new"])
        entries = (await fleet.gateway.client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in entries] == ["new", MODEL], "seen at once, not when the list has grown old"
        new = fleet.gateway.ask(model="new", n=2)
        assert (await at_once(new, (listed, 1), (announced, 1))).status_code == 200
        assert (len(listed.calls), len(announced.calls)) == (1, 1), "who did not say what it serves takes all"
        await fleet.leave(announced)
        assert [entry["id"] for entry in (await fleet.gateway.client.get("/v1/models")).json()["data"]] == [MODEL]


BAD = [
    ("{", 400, None),
    ("[]", 400, None),
    ("{}", 400, "url"),
    ('{"url": 7}', 400, "url"),
    ('{"url": "10.0.0.1:8000"}', 400, "url"),
    ('{"url": "ftp://a/v1"}', 400, "url"),
    ('{"url": "http://user:secret-91@a/v1"}', 400, "url"),
    ('{"url": "http://a/v1?x=1"}', 400, "url"),
    ('{"url": "unix:/run/docker.sock"}', 400, "url"),
    ('{"url": "http://a/%s"}' % ("x" * 600), 400, "url"),
    ('{"url": "http://a/v1", "models": []}', 400, "models"),
    ('{"url": "http://a/v1", "models": "m"}', 400, "models"),
    ('{"url": "http://a/v1", "models": [""]}', 400, "models.0"),
    ('{"url": "http://a/v1", "weight": 0}', 400, "weight"),
    ('{"url": "http://a/v1", "weight": true}', 400, "weight"),
    ('{"url": "http://a/v1", "lease_seconds": 0.5}', 400, "lease_seconds"),
    ('{"url": "http://a/v1", "lease_seconds": 3601}', 400, "lease_seconds"),
    ('{"url": "http://a/v1", "lease_seconds": true}', 400, "lease_seconds"),
    ('{"url": "http://a/v1", "lease": 30}', 400, "lease"),
    ('{"url": "http://a/v1", "models": ["%s"]}' % ("x" * (64 << 10)), 413, None),
]


@pytest.mark.parametrize(("sent", "status", "param"), BAD)
async def test_wrong_input_is_refused_by_name(fleet: Fleet, sent: str, status: int, param: str | None) -> None:
    answer = await fleet.admin.post(REPLICAS, content=sent)
    assert answer.status_code == status, answer.text
    assert envelope(answer)["param"] == param
    assert "secret-91" not in answer.text
    assert await fleet.replicas() == {}


async def test_wrong_input_is_told_in_the_words_of_the_settings(fleet: Fleet) -> None:
    async def told(**more: Any) -> str:
        answer = await fleet.admin.post(REPLICAS, json={"url": "http://a/v1", **more})
        return str(envelope(answer)["message"])

    assert await told(lease_second=3) == "Invalid 'lease_second': unknown key; did you mean lease_seconds?"
    assert await told(weight=0) == "Invalid 'weight': must be greater than 0."
    assert await told(models="m") == "Invalid 'models': must be a list."


async def test_what_is_not_there_is_a_404(fleet: Fleet) -> None:
    url = "http://10.0.0.1:8000/v1"
    for answer, code in [
        (await fleet.admin.post("/admin/upstreams/nobody/replicas", json={"url": url}), "upstream_not_found"),
        (await fleet.admin.post("/admin/upstreams/engine/replicas", json={"url": url}), "upstream_not_found"),
        (await fleet.drain(url), "replica_not_found"),
        (await fleet.drain(url, "undrain"), "not_draining"),
        (await fleet.admin.delete(f"{REPLICAS}?url={url}"), "replica_not_found"),
        (await fleet.admin.get("/v1/models"), "unknown_url"),
        (await fleet.admin.get("/replicas"), "unknown_url"),
        (await fleet.admin.get(f"{REPLICAS}/fill"), "unknown_url"),
    ]:
        assert answer.status_code == 404 and envelope(answer)["code"] == code
    assert (await fleet.admin.delete(REPLICAS)).status_code == 400
    answer = await fleet.admin.put(REPLICAS, json={"url": url})
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, POST, DELETE"


async def test_a_replica_of_the_settings_is_drained_and_not_removed(servers: list[FakeUpstream]) -> None:
    async with fleet_for(servers[0].url) as fleet:
        answer = await fleet.leave(servers[0])
        assert (answer.status_code, envelope(answer)["code"]) == (404, "replica_not_found")
        assert envelope(answer)["message"] == (
            f"'{servers[0].url}' is not registered: only registered servers can be removed."
            " POST .../replicas/drain ends new calls to any replica."
        )
        assert [*await fleet.replicas()] == [servers[0].url]


async def test_there_is_a_most_of_servers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MOST_SERVERS", 2)
    for host in "ab":
        assert (await fleet.announce(f"http://{host}:1/v1")).status_code == 201
    answer = await fleet.announce("http://c:1/v1")
    assert answer.status_code == 409 and envelope(answer)["code"] == "too_many"
    assert (await fleet.announce("http://a:1/v1")).status_code == 200


async def test_the_token_is_asked_for_everywhere_but_by_probes(fleet: Fleet) -> None:
    for shown in (None, "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}"):
        headers = {} if shown is None else {"authorization": shown}
        async with plain_client(str(fleet.admin.base_url), headers=headers) as client:
            for method, path in [("GET", "/metrics"), ("GET", "/status"), ("GET", REPLICAS), ("POST", REPLICAS)]:
                answer = await client.request(method, path)
                assert answer.status_code == 401 and envelope(answer)["code"] == "invalid_admin_token"
                assert answer.headers["www-authenticate"] == "Bearer" and TOKEN not in answer.text
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 503, "no upstream answers"


async def test_pages_in_browsers_are_refused(fleet: Fleet) -> None:
    port = fleet.admin.base_url.port
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": f"http://127.0.0.1:{port}"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        for path in ("/status", "/health"):
            answer = await fleet.admin.get(path, headers=headers)
            assert answer.status_code == 403 and envelope(answer)["type"] == "permission_error"
            assert "access-control-allow-origin" not in answer.headers
    assert (await fleet.admin.get("/status", headers={"sec-fetch-site": "none"})).status_code == 200
    assert (await fleet.admin.get("/status", headers={"host": "admin.svc:9000"})).status_code == 200


async def test_without_a_token_names_that_lead_here_are_refused() -> None:
    async with fleet_for(token=None) as fleet:
        port = fleet.admin.base_url.port
        for host, status in [
            (f"127.0.0.1:{port}", 200),
            ("localhost", 200),
            ("[::1]:9000", 200),
            ("rebound.evil.example", 403),
            (f"localhost.evil.example:{port}", 403),
            ("", 403),
        ]:
            assert (await fleet.admin.get("/status", headers={"host": host})).status_code == status, host


async def test_metrics_and_status_are_on_the_admin_port_only(fleet: Fleet, servers: list[FakeUpstream]) -> None:
    await fleet.announce(servers[0])
    for path in ("/metrics", "/status"):
        refused = await fleet.gateway.client.get(path)
        assert (refused.status_code, envelope(refused)["message"]) == (404, "This path is served on the admin port.")
        assert (await fleet.admin.get(path)).status_code == 200
    for path in ("/health", "/ready"):
        assert (await fleet.gateway.client.get(path)).status_code == 200
        assert (await fleet.admin.get(path)).status_code == 200
    assert (await fleet.admin.head("/health")).status_code == 200


async def test_metrics_and_status_stay_with_the_gateway_where_paths_are_passed_through() -> None:
    async with FakeUpstream() as upstream:
        settings = {"name": "fake", "replicas": [upstream.url]}
        config = {"upstreams": [settings], "admin": {"port": 0}, "passthrough": {"paths": "all"}}
        async with gateway_for(config) as gateway:
            assert (await gateway.client.get("/metrics")).status_code == 404
        assert upstream.requests == []


async def test_no_token_is_shown_anywhere(
    fleet: Fleet, servers: list[FakeUpstream], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await fleet.announce(servers[0])
    await fleet.drain(servers[0])
    texts = [(await fleet.admin.get(path)).text for path in ("/metrics", "/status", REPLICAS)]
    assert all(TOKEN not in text for text in (*texts, caplog.text))


async def test_an_announced_server_whose_key_is_the_upstreams_gets_it(servers: list[FakeUpstream]) -> None:
    async with fleet_for(api_key="fleet-key") as fleet:
        await fleet.announce(servers[0])
        await fleet.gateway.ask()
        assert servers[0].calls[0].headers["authorization"] == "Bearer fleet-key"
