"""Files run out: connections beyond what the process may open."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import psutil
import pytest
import trustme

from tests.clients import plain_client
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, body
from tests.gateway.secure import secure
from tests.gateway.served import served


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_256_file_descriptors(upstream: FakeUpstream, tmp_path: Path, scheme: str) -> None:
    """Idle connections take no more than half: the loop does not spin, and requests are answered all the while.

    Over TLS none of them begins its handshake.
    """
    words = ["--upstream", upstream.url, "--n", "fanout"]
    if scheme == "https":
        file = tmp_path / "nproxy.yaml"
        file.write_text(json.dumps(secure(trustme.CA(), upstream, tmp_path)))  # JSON is YAML
        words = ["--config", str(file)]
    shell = 'ulimit -n 256; exec "$@"'
    async with served(*words, scheme=scheme, shell=shell) as gateway, AsyncExitStack() as stack:
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
        async with plain_client(str(gateway.client.base_url), timeout=5.0) as another:
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await another.get("/health")).status_code == 200:
                            return
                    await asyncio.sleep(0.05)
