"""A client on stage: with the ledger beside it, or with a wire in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nproxy.config import Config
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.client import AdmissionClient
from nproxy.gateway.admission.messages import Ask, Leave, Level, Message, answer_of, message_of, to_bytes
from nproxy.gateway.admission.server import AdmissionServer, Deliver
from nproxy.gateway.callers import Caller
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import Metrics

ANN, BOB = Caller("ann", "ann"), Caller("bob", "bob")


class Wire:
    """A client's transport over which messages go as bytes, each a turn of the loop later."""

    prefix = "7"

    def __init__(self, deliver: Deliver, bounds: Bounds) -> None:
        self._loop = asyncio.get_running_loop()
        self.server = AdmissionServer(bounds, lambda answer: self._later(deliver, answer_of, to_bytes(answer)))

    def _later(self, take: Callable[[Any], None], read: Callable[[bytes], Any], data: bytes) -> None:
        self._loop.call_soon(lambda: take(read(data)))

    def at_once(self, ask: Ask) -> tuple[Level, ...] | None:
        return None

    def leave(self, ticket: str, tokens: int | None = None) -> None:
        self.send(Leave(ticket, tokens))

    def send(self, message: Message) -> None:
        self._later(self.server.send, message_of, to_bytes(message))

    def reconfigure(self, bounds: Bounds) -> None:
        self.server.reconfigure(bounds)

    def close(self) -> None:
        self.server.close()


class Scene:
    """A client, and the server that it asks in the end."""

    def __init__(self, wired: bool, limits: dict[str, Any], max_inflight: int) -> None:
        self.config = self.configured(limits, max_inflight)
        self.metrics = Metrics(version="0", upstreams=["u", "v"], models=[])
        self.client = AdmissionClient(self.config, self.metrics)
        if wired:
            self.client.connect(lambda deliver: Wire(deliver, Bounds.of(self.config)))
        transport: Any = self.client._transport
        self.server: AdmissionServer = transport.server if wired else transport

    @staticmethod
    def configured(limits: dict[str, Any], max_inflight: int = 1024) -> Config:
        upstreams = [
            {"name": name, "replicas": ["http://127.0.0.1:1/v1"], "max_inflight": max_inflight} for name in ("u", "v")
        ]
        return Config.model_validate({"upstreams": upstreams, "n_policy": {"max_n": 1}, "limits": limits})

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def stop_the_clock(self) -> None:
        """No rate works anything off from now on, however long the rest takes."""
        now = asyncio.get_running_loop().time()
        self.client._clock = self.server._clock = lambda: now

    async def settled(self) -> None:
        """All messages have arrived."""
        for _ in range(10):
            await asyncio.sleep(0)


Begin = Callable[..., Scene]


class Visitor:
    """A request that holds its permits until it is told to go."""

    def __init__(
        self, client: AdmissionClient, caller: Caller, choices: int, upstream: str = "u", tokens: int = 0
    ) -> None:
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self._visit = (client, caller, choices, upstream, tokens)
        self.task = asyncio.create_task(self._come())

    async def _come(self) -> None:
        client, caller, choices, upstream, tokens = self._visit
        with await client.admit(caller, upstream, choices, tokens):
            self.inside.set()
            await self.go.wait()

    async def left(self) -> None:
        self.go.set()
        await self.task


@asynccontextmanager
async def held(scene: Scene, choices: int, caller: Caller = ANN, upstream: str = "u") -> AsyncIterator[None]:
    with await scene.client.admit(caller, upstream, choices):
        yield


async def refusal(scene: Scene, choices: int = 1, caller: Caller = ANN, **more: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await scene.client.admit(caller, more.pop("upstream", "u"), choices, **more)
    return raised.value
