"""Replicas that nobody calls, and a client of scripted upstreams without a gateway around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nproxy.choices.events import Event, Failure, LegBody, LegChunk, LegChunks, LegFailed
from nproxy.config import Timeouts
from nproxy.config import Upstream as Settings
from nproxy.config.replicas import DnsName
from nproxy.openai.body import Spliced
from nproxy.openai.sse import BETWEEN
from nproxy.upstreams.client import Call, Client
from nproxy.upstreams.gate import Gate
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.http.head import Fields
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.via import Pseudonym
from tests.fakes.upstream import FakeUpstream
from tests.upstreams.held import held


def replica_at(url: str) -> Replica:
    settings = Settings.model_validate({"name": "u", "replicas": [url]})
    (replica,) = settings.replicas
    assert not isinstance(replica, DnsName)
    return Replica.from_config(replica)


def replicas(count: int) -> list[Replica]:
    """r0, r1 and so on."""
    return [Replica(base=f"http://r{i}/v1", socket=None, label=f"r{i}") for i in range(count)]


@asynccontextmanager
async def upstream_of(*servers: FakeUpstream | str) -> AsyncIterator[Upstream]:
    """An upstream with these replicas, with connections of its own."""
    connections = Connections(Pseudonym("nproxy-1"))
    told = {"name": "u", "replicas": [server if isinstance(server, str) else server.url for server in servers]}
    yield Upstream(Settings.model_validate(told), connections)
    await connections.close()


async def hold(gate: Gate, *, alone: bool = False) -> None:
    """Wait for a slot and hold it till the task is cancelled."""
    async with held(gate.attempt(1, alone=alone)):
        await asyncio.sleep(3600)


class Caller:
    """Makes calls and gathers what comes back."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    def client(self, **timeouts: float | None) -> Client:
        return Client(self.connections, Timeouts(**timeouts), "u")

    def call(
        self, *, stream: bool, headers: dict[str, str] | None = None, own_key: bool = False, **fields: Any
    ) -> Call:
        body = {"model": "fake-model", "messages": [], "stream": stream, **fields}
        sent = {"Content-Type": "application/json", **(headers or {})}
        head, tail = json.dumps(body).encode(), b" "
        return Call(3, "/chat/completions", Fields.of(sent), Spliced((head, tail)), streamed=stream, own_key=own_key)

    async def batches(self, url: str, call: Call, **timeouts: float | None) -> list[list[Event]]:
        batches: list[list[Event]] = []
        await self.client(**timeouts).call(replica_at(url), call, batches.append)
        return batches

    async def events(self, url: str, *, stream: bool = True, **timeouts: float | None) -> list[Event]:
        batches = await self.batches(url, self.call(stream=stream), **timeouts)
        return [event for batch in batches for event in batch]

    async def failure(self, url: str, *, stream: bool = True, **timeouts: float | None) -> Failure:
        """The failure that a call ends with."""
        last = (await self.events(url, stream=stream, **timeouts))[-1]
        assert isinstance(last, LegFailed), last
        assert "http" not in last.failure.message and "127.0.0.1" not in last.failure.message
        return last.failure


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    connections = Connections(Pseudonym("nproxy-1"))
    yield Caller(connections)
    await connections.close()


def datas(events: list[Event]) -> list[bytes]:
    """Of each event of a stream, whether it came alone or with others."""
    return [one for event in events if isinstance(event, LegChunk | LegChunks) for one in event.data.split(BETWEEN)]


def whole(events: list[Event]) -> Any:
    (body,) = (event.body for event in events if isinstance(event, LegBody))
    return json.loads(body)


@pytest.fixture
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "u.sock"
