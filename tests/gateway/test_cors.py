"""Pages of other origins: what a browser is told."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from nproxy.config import Config
from nproxy.gateway.cors import Cors
from tests.fakes.upstream import Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import CHAT, Gateway, Start, body, gateway_for

PAGE = "https://chat.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def told(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def with_cors(start: Start, *origins: str, **more: object) -> Gateway:
    gateway: Gateway = await start(config={"listen": {"port": 0, "cors_origins": list(origins)}, **more})
    return gateway


@pytest.mark.parametrize("origins", [[PAGE], ["https://other.example", PAGE], ["*"]])
async def test_a_page_asks_first(start: Start, upstream: FakeUpstream, origins: list[str]) -> None:
    gateway = await with_cors(start, *origins, auth={"api_key": "canary"})
    answer = await gateway.client.options(CHAT, headers=ASKS)
    assert (answer.status_code, answer.content) == (204, b"")
    assert told(answer) == {
        "access-control-allow-origin": "*" if origins == ["*"] else PAGE,
        "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
        "access-control-allow-headers": "authorization,content-type",
        "access-control-max-age": "600",
        "access-control-expose-headers": "x-request-id",
    }
    assert upstream.requests == []


@pytest.mark.parametrize("origin", ["https://evil.example", PAGE + ".evil.example", PAGE + ":8443", "null", ""])
async def test_pages_of_other_origins_are_told_nothing(start: Start, origin: str) -> None:
    gateway = await with_cors(start, PAGE)
    for answer in (
        await gateway.client.options(CHAT, headers={**ASKS, "Origin": origin}),
        await gateway.post(body(), headers={"Origin": origin}),
    ):
        assert told(answer) == {}
        assert answer.headers["vary"] == "Origin", "a cache must not show this to another page"


@pytest.mark.parametrize("origins", [PAGE, "*"])
@pytest.mark.parametrize("missing", ["Origin", "Access-Control-Request-Method"])
async def test_what_is_no_question_of_a_browser_needs_a_key(
    start: Start, upstream: FakeUpstream, missing: str, origins: str
) -> None:
    gateway = await with_cors(start, origins, auth={"api_key": "canary"})
    headers = {name: value for name, value in ASKS.items() if name != missing}
    assert (await gateway.client.options("/v1/embeddings", headers=headers)).status_code == 401
    assert upstream.requests == []


async def test_all_answers_may_be_read(start: Start, upstream: FakeUpstream) -> None:
    gateway = await with_cors(start, PAGE, auth={"api_key": "canary"})
    page, key = {"Origin": PAGE}, {"Authorization": "Bearer canary"}
    upstream.behaviour = Behaviour(headers={"Access-Control-Allow-Origin": "*"})
    answers = [
        await gateway.post(body(n=2), headers={**page, **key}),
        await gateway.post(body(n=2, stream=True), headers={**page, **key}),
        await gateway.post(body(n=0), headers={**page, **key}),
        await gateway.post(body(), headers=page),
        await gateway.client.get("/no-such-path", headers={**page, **key}),
        await gateway.client.get("/health", headers=page),
        await gateway.post({"input": "x"}, "/v1/embeddings", headers={**page, **key}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401, 404, 200, 200]
    for answer in answers:
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE]
        assert "Origin" in answer.headers["vary"]
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
    shown = answers[0].headers["access-control-expose-headers"].lower().split(", ")
    assert {"x-nproxy-mode", "x-nproxy-legs", "x-nproxy-upstream"} <= set(shown)


async def test_what_an_upstreams_answer_varies_by_is_told_too() -> None:
    async def varies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nVary: Accept-Language\r\nContent-Length: 2\r\n\r\nok")

    async with raw_server(varies) as url:
        config = {"listen": {"cors_origins": [PAGE]}, "upstreams": [{"name": "u", "replicas": [url]}]}
        async with gateway_for(config) as gateway:
            answer = await gateway.client.get("/v1/responses/1", headers={"Origin": PAGE})
            assert answer.headers.get_list("vary") == ["Accept-Language", "Origin"]


async def test_without_the_setting_no_answer_says_anything(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(status=400, headers={"Access-Control-Allow-Origin": "*"})
    for answer in (
        await gateway.client.options(CHAT, headers=ASKS),
        await gateway.post(body(), headers={"Origin": PAGE}),
        await gateway.post({"input": "x"}, "/v1/embeddings", headers={"Origin": PAGE}),
    ):
        assert told(answer) == {}
        assert "vary" not in answer.headers


@pytest.mark.parametrize("asked", ["x\r\ny", "a b", "", "é"])
def test_what_is_no_header_name_is_not_repeated(asked: str) -> None:
    answer = Cors(["*"]).preflight({**ASKS, "Access-Control-Request-Headers": asked})
    assert answer is not None
    assert "Access-Control-Allow-Headers" not in answer


@pytest.mark.parametrize(
    "origin", ["chat.example", "https://chat.example/", "https://a/b", "https://*.example", "null"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="must be an origin"):
        Config.model_validate({"listen": {"cors_origins": [origin]}})
