"""Traces of a real `nproxy serve`: every worker sends its own, and what is left when it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.collector import Collector
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, body
from tests.gateway.served import served

REQUESTS = 6


async def test_what_is_left_is_sent_at_the_end(upstream: FakeUpstream, tmp_path: Path) -> None:
    config = tmp_path / "nproxy.yaml"
    async with Collector() as collector:
        config.write_text(
            f"listen: {{workers: 2}}\nupstreams: [{{name: fake, replicas: ['{upstream.url}'], n: fanout}}]\n"
            f"telemetry: {{otlp_endpoint: '{collector.url}'}}\n"
        )
        async with served("--config", str(config)) as gateway:
            for _ in range(REQUESTS):
                answer = await gateway.client.post(CHAT, json=body(n=2), headers={"connection": "close"})
                assert answer.status_code == 200
            gateway.process.terminate()
            async with asyncio.timeout(60):
                assert await gateway.process.wait() == 0
    servers = [span for span in collector.spans if span.kind == "SERVER"]
    assert len(servers) == REQUESTS
    assert len(collector.spans) == REQUESTS * 3
    told = {call.headers["traceparent"].split("-")[2] for call in upstream.calls}
    assert told == {call.id for call in collector.calls}
