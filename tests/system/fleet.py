"""Two real servers of one model behind nproxy, which can be killed and stopped, and a strict client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from tests.conformance.reading import Reading
from tests.real.metrics import metric
from tests.real.processes import Server, nproxy

NAME = "fleet"
LOOKS = {"interval": 0.2, "timeout": 2, "down_after": 2, "up_after": 1, "path": "/health"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server."""

    start: Callable[[Path], AbstractContextManager[Server]]
    upstream: dict[str, Any]
    """Settings of its upstream."""
    fields: dict[str, Any]
    """Fields of every request."""
    streaming: int
    """The least number of eight choices that stream at the same time before one of them ends."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A gateway and the two servers behind it; requests are streamed legacy completions."""

    kind: Kind
    servers: dict[str, Server]  # by the replica's label
    gateway: Server

    @classmethod
    @contextmanager
    def started(cls, kind: Kind, folder: Path, **upstream: Any) -> Iterator[Self]:
        """Start both servers and the gateway, with their logs in a folder. upstream: further settings."""
        with ExitStack() as stack:
            pair = [stack.enter_context(kind.start(folder / f"server-{number}.log")) for number in (1, 2)]
            servers = {server.v1: server for server in pair}
            told = {"name": NAME, "replicas": [*servers], "health": LOOKS, **kind.upstream, **upstream}
            (folder / "nproxy.yaml").write_text(json.dumps({"upstreams": [told]}))
            gateway = nproxy("--config", str(folder / "nproxy.yaml"), log=folder / "nproxy.log")
            yield cls(kind, servers, stack.enter_context(gateway))

    async def stream(self, n: int, **fields: Any) -> AsyncIterator[Reading]:
        """Ask for n choices and yield what was read so far after each event; the answer must be complete at the end."""
        asked = {"stream": True, "stream_options": {"include_usage": True}, **self.kind.fields, "n": n, **fields}
        async with (
            httpx.AsyncClient(timeout=None, trust_env=False) as client,
            client.stream("POST", f"{self.gateway.v1}/completions", json=asked) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            reading = Reading(n, chat=False, include_usage=True, continuous=False, relayed=False)
            rest = b""
            async for data in answer.aiter_bytes():
                *blocks, rest = (rest + data).split(b"\n\n")
                for block in blocks:
                    reading.take(block)
                    yield reading
        assert reading.done and not rest, (reading.error, rest)

    async def whole(self, n: int, **fields: Any) -> Reading:
        """Ask for n choices and read them to the end."""
        return [reading async for reading in self.stream(n, **fields)][-1]

    def midway(self, reading: Reading) -> bool:
        """Whether at least `streaming` choices are in mid-stream, so that each working server has some of them."""
        midway = [voice for voice in reading.voices if voice.finish is None and len(voice.choices) > 2]
        return len(midway) >= self.kind.streaming

    def replicas(self) -> dict[str, dict[str, Any]]:
        """Return the gateway's status of each replica, by label."""
        status = httpx.get(f"{self.gateway.url}/status", timeout=30, trust_env=False).raise_for_status().json()
        return {replica["replica"]: replica for replica in status["upstreams"][0]["replicas"]}

    def at_work(self) -> str | None:
        """Return the label of a replica that has calls; None if there is none."""
        return next((label for label, replica in self.replicas().items() if replica["legs"]), None)

    def resumed(self, how: str) -> float:
        """Return how many legs were resumed successfully."""
        return metric(self.gateway.url, "nproxy_resumes_total", upstream=NAME, how=how, outcome="ok")

    @contextmanager
    def stopped(self, label: str) -> Iterator[None]:
        """Stop all processes of a server, and continue them afterwards."""
        processes = self.servers[label].family()
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in processes:
                process.resume()
