"""`nproxy serve` as a process of its own, with standard streams of the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

import httpx

from tests.clients import plain_client
from tests.ports import free_port


@dataclass(frozen=True, slots=True)
class Served:
    """A running `nproxy serve`, and a client for it."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient

    async def metric(self, line: str) -> float:
        """One sample of /metrics, by its name and labels; 0 where it is not there."""
        text = (await self.client.get("/metrics")).text
        samples = [sample for sample in text.splitlines() if sample.startswith(line + " ")]
        return float(samples[0].rsplit(" ", 1)[1]) if samples else 0.0


@asynccontextmanager
async def served(
    *words: str,
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: int | IO[bytes] = asyncio.subprocess.DEVNULL,
    host: str = "127.0.0.1",
    scheme: str = "http",
    shell: str = 'exec "$@"',
    seconds: float = 60.0,
) -> AsyncIterator[Served]:
    """Run it until the block is left; entered once /health answers. shell: how a shell starts it, as `"$@"`."""
    port = free_port()
    argv = [sys.executable, "-m", "nproxy", "serve", "--host", host, "--port", str(port), *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NPROXY_")}
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", shell, "sh", *argv, stdin=stdin, stderr=stderr, env=kept
    )
    base = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    try:
        async with plain_client(base, timeout=60, limits=httpx.Limits()) as client:
            async with asyncio.timeout(seconds):
                while not await _answers(client):
                    assert process.returncode is None, "it ended"
                    await asyncio.sleep(0.05)
            yield Served(process, client)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False
