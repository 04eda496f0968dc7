"""Files run out: connections beyond what the process may open."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack

import httpx
import psutil

from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, body
from tests.gateway.served import served


async def test_256_file_descriptors(upstream: FakeUpstream) -> None:
    """Idle connections take no more than half: the loop does not spin, and requests are answered all the while."""
    shell = 'ulimit -n 256; exec "$@"'
    async with served("--upstream", upstream.url, "--n", "fanout", shell=shell) as gateway, AsyncExitStack() as stack:
        answer = await gateway.client.post(CHAT, json=body(n=3))
        assert answer.status_code == 200
        host, port = gateway.client.base_url.host, gateway.client.base_url.port
        for _ in range(300):
            _, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
        process = psutil.Process(gateway.process.pid)
        assert process.num_fds() < 200
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(1.0)
        assert sum(process.cpu_times()[:2]) - before < 0.5, "it does not try to accept again and again"
        answer = await gateway.client.post(CHAT, json=body(n=8))  # over the connection that it has
        assert len(answer.json()["choices"]) == 8
        await stack.aclose()
        async with httpx.AsyncClient(base_url=gateway.client.base_url, trust_env=False) as another:
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await another.get("/health")).status_code == 200:
                            return
                    await asyncio.sleep(0.05)
