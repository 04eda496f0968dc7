"""slowhttptest holds connections by being slow: the gateway keeps answering others, and closes the slow ones."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, gateway_for, upstream_settings
from tests.real.processes import ROOT

pytestmark = pytest.mark.timeout(120)

PROGRAM = ROOT / ".venvs" / "slowhttptest" / "usr" / "bin" / "slowhttptest"
CONNECTIONS, SECONDS = 200, 10

ATTACKS = {
    "heads": ["-H", "-i", "2", "-x", "24"],
    "bodies": ["-B", "-i", "2", "-s", "8192", "-x", "10", "-t", "POST"],
    "readers": ["-X", "-w", "1", "-y", "10", "-n", "2", "-z", "8", "-k", "3"],
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_others_are_answered_meanwhile(attack: str) -> None:
    async with FakeUpstream(models=[f"model-{number}" for number in range(2_000)]) as upstream:
        upstreams = [upstream_settings(upstream, models="auto")]
        async with gateway_for({"upstreams": upstreams, "limits": {"write_seconds": 5}}, header_seconds=3.0) as gateway:
            path = CHAT if attack == "bodies" else "/v1/models"
            words = [*ATTACKS[attack], "-c", str(CONNECTIONS), "-r", "50", "-l", str(SECONDS), "-p", "3"]
            run = await asyncio.create_subprocess_exec(
                str(PROGRAM), *words, "-u", gateway.url + path, stdout=asyncio.subprocess.PIPE
            )
            told = asyncio.create_task(run.communicate())
            most = await answered_until(gateway, told)
            output, _ = await told
            assert run.returncode == 0, output.decode()[-500:]
            assert most >= CONNECTIONS / 5, "the attack came through to us"
            async with asyncio.timeout(60):
                while len(gateway.http.connections) > 1:  # one is the client's own
                    await asyncio.sleep(0.1)
            assert (await gateway.ask(n=2)).status_code == 200


async def answered_until(gateway: Gateway, end: asyncio.Task[tuple[bytes, bytes]]) -> int:
    """Send requests until the end; return the most connections that were open at once."""
    most = 0
    while not end.done():
        async with asyncio.timeout(20):
            assert len((await gateway.ask(n=2)).json()["choices"]) == 2
        most = max(most, len(gateway.http.connections))
        await asyncio.sleep(0.1)
    return most
