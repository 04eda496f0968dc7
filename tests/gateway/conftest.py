"""Fixtures: a gateway on loopback, and a scripted upstream behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvloop

from nproxy.config import Config, read_keys
from nproxy.gateway.app import App
from nproxy.gateway.serve import Running, running
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream

CHAT = "/v1/chat/completions"
PROMPT = "canary: hi"
"""Text that no log, metric or status page may contain (tests/witness.py)."""


@dataclass
class Stream:
    """A whole streamed answer, parsed."""

    status: int
    headers: httpx.Headers
    raw: bytes

    @property
    def events(self) -> list[bytes]:
        return [part.removeprefix(b"data: ") for part in self.raw.split(b"\n\n") if part.startswith(b"data: ")]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.events if event != b"[DONE]"]

    @property
    def done(self) -> bool:
        return bool(self.events) and self.events[-1] == b"[DONE]" and self.events.count(b"[DONE]") == 1

    @property
    def texts(self) -> dict[int, str]:
        joined: dict[int, str] = {}
        for chunk in self.chunks:
            for choice in chunk.get("choices", []):
                text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                joined[choice["index"]] = joined.get(choice["index"], "") + (text or "")
        return joined

    @property
    def finishes(self) -> dict[int, list[str]]:
        reasons: dict[int, list[str]] = {}
        for chunk in self.chunks:
            for choice in chunk.get("choices", []):
                if choice.get("finish_reason"):
                    reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
        return reasons


class Gateway:
    """A running gateway and a client for it."""

    def __init__(self, gateway: Running, client: httpx.AsyncClient) -> None:
        self.app: App = gateway.app
        self.http = gateway.http
        self.url = gateway.url
        self.client = client
        host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
        self.address = (host, int(port))

    async def post(self, body: object, path: str = CHAT, **kwargs: Any) -> httpx.Response:
        """POST a JSON body (bytes are sent as they are)."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **kwargs.pop("headers", {})}
        return await self.client.post(path, content=content, headers=headers, **kwargs)

    async def ask(self, path: str = CHAT, **fields: Any) -> httpx.Response:
        """Request a completion. fields: replace those of a small default body."""
        return await self.post(body(path, **fields), path)

    async def stream(self, path: str = CHAT, *, headers: dict[str, str] | None = None, **fields: Any) -> Stream:
        """Request a stream, and read it to its end."""
        answer = await self.post(body(path, stream=True, **fields), path, headers=headers or {})
        return Stream(answer.status_code, answer.headers, answer.content)

    async def metric(self, line: str) -> float:
        """One sample of /metrics, by its name and labels; 0 if it is not there."""
        text = (await self.client.get("/metrics")).text
        for sample in text.splitlines():
            if sample.startswith(line + " "):
                return float(sample.rsplit(" ", 1)[1])
        return 0.0


def body(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    """A small request body for an endpoint."""
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    return {"model": MODEL, **prompt, **fields}


def envelope(answer: httpx.Response) -> dict[str, Any]:
    """The error in an answer, which must be in OpenAI's envelope."""
    assert answer.headers["content-type"].startswith("application/json"), answer.text
    document = answer.json()
    assert list(document) == ["error"]
    error: dict[str, Any] = document["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


@asynccontextmanager
async def gateway_for(config: dict[str, Any], **kwargs: Any) -> AsyncIterator[Gateway]:
    """Run a gateway with this configuration on a free port."""
    parsed = Config.model_validate({**config, "listen": {"port": 0, **config.get("listen", {})}})
    file = None if parsed.auth is None else parsed.auth.api_keys_file
    async with (
        running(parsed, () if file is None else read_keys(file), **kwargs) as gateway,
        plain_client(gateway.url) as client,
    ):
        yield Gateway(gateway, client)


def upstream_settings(upstream: FakeUpstream, **settings: Any) -> dict[str, Any]:
    return {"name": "fake", "replicas": [upstream.url], "n": "fanout", **settings}


Start = Callable[..., Any]


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    """A scripted upstream that ignores `n`; tests set its `behaviour`."""
    async with FakeUpstream(Behaviour()) as server:
        yield server


@pytest.fixture
async def start(upstream: FakeUpstream) -> AsyncIterator[Start]:
    """Starts gateways in front of `upstream`. Keywords are the upstream's settings; `config` holds other sections."""
    async with AsyncExitStack() as stack:

        async def begin(*, config: dict[str, Any] | None = None, **settings: Any) -> Gateway:
            whole = {"upstreams": [upstream_settings(upstream, **settings)], **(config or {})}
            return await stack.enter_async_context(gateway_for(whole))

        yield begin


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    """A gateway that fans out to `upstream`."""
    started: Gateway = await start()
    return started


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that also serves the gateway: its transports differ from asyncio's in ways that matter here."""
    return {"uvloop": uvloop.new_event_loop}
