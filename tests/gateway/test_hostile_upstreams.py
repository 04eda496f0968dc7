"""What an upstream may not do to clients by answers that are passed through, and to whom its limits belong."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.upstream import FakeUpstream, raw_server
from tests.gateway.conftest import CHAT, Gateway, Start, body, envelope, gateway_for
from tests.waiting import until

OWN = "the-key-of-the-upstream"


@asynccontextmanager
async def answering(head: str, text: str = "{}", **more: Any) -> Any:
    """A gateway in front of a server whose answers are these."""
    answer = f"HTTP/1.1 {head}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(answer)

    async with raw_server(handle) as url:
        settings = {"name": "hostile", "replicas": [url], "models": ["m"], **more}
        async with gateway_for({"upstreams": [settings]}) as gateway:
            yield gateway


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_clients_are_not_led_to_other_servers(status: int) -> None:
    """A client that follows takes its prompt there, and often its key."""
    async with answering(f"{status} There\r\nLocation: http://thief.example/") as gateway:
        answer = await gateway.client.get("/v1/messages")
        assert answer.status_code == 502
        assert envelope(answer)["code"] == "upstream_error"
        assert "thief" not in answer.text and "location" not in answer.headers


async def test_what_a_client_has_already_is_passed_on() -> None:
    async with answering('304 Not Modified\r\nETag: "a"', text="") as gateway:
        answer = await gateway.client.get("/v1/responses/x")
        assert (answer.status_code, answer.headers["etag"]) == (304, '"a"')


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_of_nproxys_own_key_is_not_the_clients(status: int) -> None:
    text = f'{{"error": {{"message": "Incorrect API key: {OWN}"}}}}'
    async with answering(f"{status} No\r\nContent-Type: application/json", text, api_key=OWN) as gateway:
        answer = await gateway.client.get("/v1/responses/x")
        assert (answer.status_code, envelope(answer)["code"]) == (502, "upstream_auth")
        assert OWN not in answer.text
    async with answering(f"{status} No\r\nContent-Type: application/json", text, api_key="passthrough") as gateway:
        assert (await gateway.client.get("/v1/responses/x")).status_code == status


@pytest.mark.parametrize("status", [400, 402, 404, 429, 500])
async def test_other_refusals_are_the_clients_although_the_key_is_nproxys_own(status: int) -> None:
    async with answering(f"{status} No\r\nContent-Type: application/json", '{"error": 1}', api_key=OWN) as gateway:
        answer = await gateway.client.get("/v1/responses/x")
        assert (answer.status_code, answer.text) == (status, '{"error": 1}')


async def test_answers_are_no_pages_and_say_nothing_of_the_gateways_origin() -> None:
    told = "Clear-Site-Data: *\r\nStrict-Transport-Security: max-age=9\r\nAlt-Svc: h3=x\r\nRefresh: 0\r\nX-Kept: yes"
    async with answering(f"200 OK\r\nContent-Type: text/html\r\n{told}", "<script>steal()</script>") as gateway:
        answer = await gateway.client.get("/v1/responses/x")
        assert answer.headers["x-kept"] == "yes"
        assert not {"clear-site-data", "strict-transport-security", "alt-svc", "refresh"} & answer.headers.keys()
        assert (answer.headers["content-security-policy"], answer.headers["x-content-type-options"]) == (
            "sandbox",
            "nosniff",
        )


@pytest.mark.parametrize(
    "path", ["/v1/chat/completion%73", "/v1/chat/completions/", "/V1/chat/completions", "/v1/chat/completions%2F"]
)
async def test_no_path_leads_around_what_nproxy_counts(start: Start, upstream: FakeUpstream, path: str) -> None:
    gateway: Gateway = await start(config={"passthrough": {"paths": "all"}})
    assert (await gateway.client.post(path, json=body(n=100))).status_code == 404
    assert (await gateway.client.post("/v1/chat/completions/else", json={})).status_code == 200
    assert [one.path for one in upstream.requests if one.method == "POST"] == ["/v1/chat/completions/else"]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_no_header_says_the_same_in_another_spelling(upstream: FakeUpstream, path: str) -> None:
    """In the variables of CGI and WSGI, `_` and `-` are the same."""
    settings = {"name": "u", "replicas": [upstream.url], "api_key": "own", "models": ["fake-model"]}
    sent = {"Transfer_Encoding": "chunked", "Content_Length": "1", "x-api_key": "theirs", "X_Other": "1"}
    async with gateway_for({"upstreams": [settings]}) as gateway:
        assert (await gateway.client.post(path, json=body(path), headers=sent)).status_code == 200
    [seen] = [one for one in upstream.requests if one.method == "POST"]
    assert seen.headers["x_other"] == "1"
    assert not {"transfer_encoding", "content_length", "x-api_key"} & {name.lower() for name in seen.headers}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_origins_cause_nothing_where_no_key_is_needed(
    start: Start, upstream: FakeUpstream, site: str
) -> None:
    sent = {"Origin": "https://evil.example", "Sec-Fetch-Site": site, "Content-Type": "text/plain"}
    gateway: Gateway = await start()
    refused = await gateway.client.post(CHAT, json=body(), headers=sent)
    assert (refused.status_code, envelope(refused)["code"]) == (403, "forbidden")
    assert upstream.calls == []
    assert (await gateway.client.get("/v1/models", headers=sent)).status_code == 200, "it cannot read the answer"
    own = {**sent, "Sec-Fetch-Site": "same-origin"}
    assert (await gateway.client.post(CHAT, json=body(), headers=own)).status_code == 200
    allowing: Gateway = await start(config={"listen": {"port": 0, "cors_origins": ["https://evil.example"]}})
    assert (await allowing.client.post(CHAT, json=body(), headers=sent)).status_code == 200
    keyed: Gateway = await start(config={"auth": {"api_key": "canary"}})
    with_key = {**sent, "Authorization": "Bearer canary"}
    assert (await keyed.client.post(CHAT, json=body(), headers=with_key)).status_code == 200, "it has the key"


@pytest.mark.parametrize(
    ("host", "origin", "listen", "status"),
    [
        ("gateway.lan:8000", "http://evil.example:8000", {"host": "0.0.0.0"}, 403),  # HTTP: no Sec-Fetch-Site
        ("gateway.lan:8000", "null", {"host": "0.0.0.0"}, 403),  # a file, or a page in a sandbox
        ("Gateway.lan:8000", "http://gateway.lan:8000", {"host": "0.0.0.0"}, 200),
        ("evil.example:8000", "http://evil.example:8000", {}, 403),  # a name that resolves to this machine
        ("127.0.0.1:8000", "http://127.0.0.1:8000", {}, 200),
        ("[::1]:8000", "http://[::1]:8000", {}, 200),
        ("localhost:8000", "http://localhost:8000", {}, 200),
        ("chat.localhost", "http://chat.localhost", {}, 200),
        ("chat.example", "http://chat.example", {"trusted_proxies": ["127.0.0.1"]}, 200),
        ("chat.example", "http://chat.example", {"cors_origins": ["http://chat.example"]}, 200),
    ],
)
async def test_where_no_key_is_needed_a_page_is_known_by_its_origin_and_the_name_it_uses(
    start: Start, upstream: FakeUpstream, host: str, origin: str, listen: dict[str, Any], status: int
) -> None:
    gateway: Gateway = await start(config={"listen": {"port": 0, **listen}})
    answer = await gateway.client.post(CHAT, json=body(), headers={"Host": host, "Origin": origin})
    assert (answer.status_code, len(upstream.calls)) == (status, 1 if status == 200 else 0)
    assert (await gateway.client.post(CHAT, json=body(), headers={"Host": host})).status_code == 200, "no page"


async def test_a_server_that_hangs_makes_nobody_wait_for_the_others_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nproxy.upstreams.documents.LIST_SECONDS", 0.5)
    asked = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(60)

    async with raw_server(hang) as url:
        settings = {"name": "u", "replicas": [url], "models": ["m"], "health": {"interval": None}}
        async with gateway_for({"upstreams": [settings]}) as gateway, asyncio.timeout(3):
            before = len(asked)
            answers = await asyncio.gather(*(gateway.client.get("/ready") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {503}
            assert len(asked) - before <= 2


async def test_being_asked_for_readiness_often_asks_the_upstream_seldom() -> None:
    async with FakeUpstream() as upstream:
        settings = {"name": "u", "replicas": [upstream.url], "models": ["m"], "health": {"interval": None}}
        async with gateway_for({"upstreams": [settings]}) as gateway:
            await until(lambda: not upstream.open_calls)
            before = len(upstream.requests)
            answers = await asyncio.gather(*(gateway.client.get("/ready") for _ in range(50)))
            assert {answer.status_code for answer in answers} == {200}
            assert len(upstream.requests) - before <= 2
